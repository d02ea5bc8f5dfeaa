#!lua
-- enqueue: nowhere -> schedule.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
-- ROWS   id        1 to 200 of A-Z a-z 0-9 . _ : @ -
--        payload   JSON
--        priority  0 to 9, '' = the default
--        group     '' = none
--        due       Unix seconds, '' = `delay` from now
--        delay     seconds
-- REPLY  for each row the due, seconds
-- FAILS  EXISTS    a job of that id has not ended, or is dead; then no row is written
-- TWICE  the second call fails with EXISTS: to a caller that had no reply to the first, that is its own job
--
-- All rows are checked before the first is written. The only script that Redis refuses when its memory is full:
-- all others make room or finish what was begun. One ZADD for all rows, so one keyspace event.

local now = unpack(ARGV, 1, 1)
now = clock(now)

local seen, places, dues = {}, {}, {}
for id, _, _, _, due, delay in rows(2, 6) do
  if seen[id] then
    return fail('EXISTS', id .. ' stands twice in this call')
  end
  seen[id] = true
  if redis.call('EXISTS', record(id)) == 1 then
    if redis.call('ZSCORE', dead, id) then
      return fail('EXISTS', id .. ' is dead: revive or drop it')
    end
    if redis.call('HEXISTS', record(id), 'finished') == 0 or redis.call('ZSCORE', schedule, id) then
      return fail('EXISTS', id .. ' has not ended yet')
    end
  end
  if due == '' then
    due = seconds(now + tonumber(delay))
  end
  places[#places + 1] = due
  places[#places + 1] = id
  dues[#dues + 1] = due
end

-- The schedule first: ZADD refuses a due that is no number, and a key of the wrong type, before it writes.
redis.call('ZADD', schedule, unpack(places))
for id, payload, priority, group in rows(2, 6) do
  local fields = { 'payload', payload }
  if priority ~= '' then
    fields[#fields + 1] = 'priority'
    fields[#fields + 1] = priority
  end
  if group ~= '' then
    fields[#fields + 1] = 'group'
    fields[#fields + 1] = group
  end
  -- The reply of an earlier job of this id is no answer to who waits for this one.
  redis.call('DEL', record(id), root .. 'reply:' .. id)
  redis.call('HSET', record(id), unpack(fields))
end
return dues
