#!lua
-- enqueue: nowhere -> schedule.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        conflict  for an id whose job has not ended: '' = refuse, 'keep' = leave that job unchanged
-- ROWS   id        1 to 200 of A-Z a-z 0-9 . _ : @ -
--        payload   JSON
--        priority  0 to 9, '' = the default
--        group     '' = none
--        due       Unix seconds, '' = `delay` from now
--        delay     seconds
-- REPLY  for each row the due, seconds
-- FAILS  EXISTS    a job of that id has not ended, or is dead; then no row is written
-- TWICE  the second call fails with EXISTS, which a caller without a reply to the first reads as success; or it keeps
--        what the first wrote
-- USES   clock, rows, fail, record, acquit, moment_of, field_of, seconds, write_record
--
-- All rows are checked before the first is written. Redis refuses this script when its memory is full. One command for
-- all rows where there can be: one ZADD, so one keyspace event, and one EXISTS and one DEL, which take half of the time
-- that one for each row would.

local now, conflict = unpack(ARGV, 1, 2)
now = clock(now)

local seen, records, old = {}, {}, {}
for id in rows(3, 6) do
  if seen[id] then
    return fail('EXISTS', id .. ' stands twice in this call')
  end
  seen[id] = true
  records[#records + 1] = record(id)
end
local known = #records > 0 and redis.call('EXISTS', unpack(records)) > 0

local places, dues, kept = {}, {}, {}
-- Most rows have the same delay, and to format a number takes 0.5 us.
local due_after = {}
for id, _, _, _, due, delay in rows(3, 6) do
  local refusal
  if known and redis.call('EXISTS', record(id)) == 1 then
    if redis.call('ZSCORE', dead, id) then
      refusal = id .. ' is dead: revive or drop it'
    elseif redis.call('HEXISTS', record(id), 'finished') == 0 or redis.call('ZSCORE', schedule, id) then
      refusal = id .. ' has not ended yet'
    end
    old[#old + 1] = not refusal and record(id) or nil
  end
  if refusal and conflict == '' then
    return fail('EXISTS', refusal)
  elseif refusal then
    kept[id] = true
    due = redis.call('ZSCORE', schedule, id) or moment_of(field_of(id, 'due')) or seconds(now)
  else
    if due == '' then
      due_after[delay] = due_after[delay] or seconds(now + tonumber(delay))
      due = due_after[delay]
    end
    places[#places + 1] = due
    places[#places + 1] = id
    -- The reply of an earlier job of this id must not reach a client that waits for this one.
    old[#old + 1] = root .. 'reply:' .. id
  end
  dues[#dues + 1] = due
end

-- The schedule first: ZADD refuses an invalid due, and a key of the wrong type, before it writes.
if #places > 0 then
  redis.call('ZADD', schedule, unpack(places))
  redis.call('DEL', unpack(old))
end
for id, payload, priority, group in rows(3, 6) do
  if not kept[id] then
    acquit(id)
    write_record(id, payload, priority, group)
  end
end
return dues
