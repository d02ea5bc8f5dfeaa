#!lua flags=allow-oom
-- arrive: moving of another queue -> schedule. The batch of jobs that has left that queue comes here.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        from      the queue that it left
--        number    count: of the batch
--        token     of the batch
-- ROWS   member    of the schedule: an id or an inline job
--        content   what `depart` packed
-- REPLY  '1' = a later batch has come from there, so nothing was written: this one has been finished, or Redis's clock
--        was set back, '' = the jobs are here; the number of the last batch that came; the members that did not come,
--        because a job of that id is here
-- FAILS  none
-- TWICE  the second call changes nothing and returns the same, however much later it comes
-- USES   clock, rows, expect, expect_gate, record, arrived, place_of, field_of, is_inline, decode, digest, MEMBER_MOST,
--        mark_suspect, unique, note_deferred, refuse
--
-- It also runs when Redis's memory is full: the jobs can be nowhere else. About 10 us a job; O(workers) for one whose
-- id has a record here.

local now, from, number, token = unpack(ARGV, 1, 4)
now = clock(now)

expect('ZCARD', dead, leases)
expect('HLEN', arrived)
expect_gate()

local text = redis.call('HGET', arrived, from)
local last = text and cjson.decode(text)
if last and last.number == number and last.token == token then
  -- The same value again: WAIT on this connection waits for a write, and this one comes behind that of the batch.
  redis.call('HSET', arrived, from, text)
  return { '', number, last.stay }
elseif last and tonumber(last.number) >= tonumber(number) then
  return { '1', last.number, {} }
end

-- Is the id of a member taken here, by a job that has not ended or is dead?
local function is_taken(member)
  local id = is_inline(member) and ((decode(member, MEMBER_MOST) or {}).id or digest(member)) or member
  if redis.call('ZSCORE', schedule, member) then
    return true
  elseif redis.call('EXISTS', record(id)) == 0 then
    return false
  end
  local place = place_of(id, field_of(id, 'worker'), field_of(id, 'finished'))
  return place and place ~= 'finished'
end

-- Does a list consist of `count` values of a type?
local function has_type(list, kind, count)
  for i = 1, count do
    if type(list[i]) ~= kind then
      return false
    end
  end
  return #list == count
end

-- Is this what `depart` packs of a job? An inline one has only a due.
local function is_job(job)
  if type(job) ~= 'table' or type(job[1]) ~= 'string' or job[2] == nil then
    return type(job) == 'table' and type(job[1]) == 'string'
  end
  local fields, taken, left, suspicion, window = unpack(job, 2, 6)
  return type(fields) == 'table'
    and #fields % 2 == 0
    and has_type(fields, 'string', #fields)
    and type(left) == 'number'
    and left % 1 == 0
    and type(suspicion) == 'table'
    and has_type(suspicion, 'number', 3)
    and has_type({ taken, window }, 'string', 2)
end

local function unpacked(content)
  local good, job = pcall(cmsgpack.unpack, content)
  if not good or not is_job(job) then
    refuse('content', 'what `depart` packs')
  end
  return job
end

local stay, places, jobs = {}, {}, {}
for member, content in rows(5, 2) do
  if is_taken(member) then
    stay[#stay + 1] = member
  else
    local job = unpacked(content)
    places[#places + 1] = job[1]
    places[#places + 1] = member
    jobs[member] = job
  end
end

-- The schedule first, so that no record is left without a job.
if #places > 0 then
  redis.call('ZADD', schedule, unpack(places))
end
redis.call('HSET', arrived, from, cjson.encode({ number = number, token = token, stay = stay }))
for id, job in pairs(jobs) do
  local due, fields, taken, left, suspicion, window = unpack(job)
  if fields then -- an inline job has none
    -- The record and the reply of an earlier job of this id.
    redis.call('DEL', record(id), root .. 'reply:' .. id)
    if #fields > 0 then
      redis.call('HSET', record(id), unpack(fields))
    end
    if left > math.max(0, redis.call('PTTL', unique(id))) then
      redis.call('SET', unique(id), taken, 'PX', left)
    end
    if suspicion[1] > 0 or suspicion[2] > 0 then
      mark_suspect(id, unpack(suspicion))
    end
    if window ~= '' then
      note_deferred(window, id, due, now)
    end
  end
end
return { '', number, stay }
