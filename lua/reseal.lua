#!lua
-- reseal: moves nothing: writes values that were sealed with another key in place of the values that were read.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   kind      of the rows: job, inline, recurrence or node
-- ROWS   name      the id of the job; the member of the schedule; the name of the recurrence; the id of the graph
--        field     of the record, or of the hash of nodes; '' for a member
--        was       SHA-1 of the value that the caller has read, in hex
--        value     the new value, or the new member
-- REPLY  for each row '1', or '0' = the value is another one by now, and was left as it is
-- FAILS  none
-- TWICE  the second call finds the new values, and writes nothing
-- USES   rows, field_size, whole_field, record, recurrence, is_inline, batch_part
--
-- A job keeps its place, its due and everything else; a run that holds it has its own copy of the payload. An inline
-- job without an id gets another one, which is made of its member: only one that is on the schedule is changed, and
-- nobody knows its id yet. About 3 us a row, besides the bytes of the values.

local kind = unpack(ARGV, 1, 1)

-- A value of a hash, if it is the one that was read.
local function is_there(key, field, was)
  local value = redis.pcall('HGET', key, field)
  return type(value) == 'string' and redis.sha1hex(value) == was
end

local function reseal_job(id, field, was, value)
  local size = field_size(id, field)
  if type(size) ~= 'number' or size == 0 or redis.sha1hex(whole_field(id, field)) ~= was then
    return false
  end
  -- If the job is light, another client may have written another payload to the record, which stays.
  local key = record(id)
  return is_there(key, field, was) and redis.call('HSET', key, field, value)
end

local function reseal_member(member, was, value)
  local are_inline = is_inline(member) and is_inline(value)
  local due = are_inline and redis.sha1hex(member) == was and redis.call('ZSCORE', schedule, member)
  if not due then
    return false
  end
  redis.call('ZADD', schedule, due, value)
  return redis.call('ZREM', schedule, member)
end

local done = {}
for name, field, was, value in rows(2, 4) do
  local written
  if kind == 'job' then
    written = reseal_job(name, field, was, value)
  elseif kind == 'inline' then
    written = reseal_member(name, was, value)
  else
    local key = kind == 'recurrence' and recurrence(name) or batch_part('nodes', name)
    written = is_there(key, field, was) and redis.call('HSET', key, field, value)
  end
  done[#done + 1] = written and '1' or '0'
end
return done
