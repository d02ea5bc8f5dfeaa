#!lua
-- enqueue: nowhere -> schedule.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        conflict  what of an id whose job has not ended: '' = refuse, 'replace' its payload and time, 'keep' it
-- ROWS   id        1 to 200 of A-Z a-z 0-9 . _ : @ -
--        payload   JSON
--        priority  0 to 9, '' = the default
--        group     '' = none
--        due       Unix seconds, '' = `delay` from now
--        delay     seconds
-- REPLY  for each row the due, seconds
-- FAILS  EXISTS    a job of that id has not ended, or is dead; then no row is written
-- TWICE  the second call fails with EXISTS: to a caller that had no reply to the first, that is its own job; or it
--        replaces, or keeps, what the first wrote
--
-- All rows are checked before the first is written. The only script that Redis refuses when its memory is full:
-- all others make room or finish what was begun. One ZADD for all rows, so one keyspace event.
-- Replaced while it runs, a job runs again after: the run that is under way has its own payload and ends as it ends.

local now, conflict = unpack(ARGV, 1, 2)
now = clock(now)

local seen, places, dues, kept, replaced = {}, {}, {}, {}, {}
for id, _, _, _, due, delay in rows(3, 6) do
  if seen[id] then
    return fail('EXISTS', id .. ' stands twice in this call')
  end
  seen[id] = true
  local unended
  if redis.call('EXISTS', record(id)) == 1 then
    if redis.call('ZSCORE', dead, id) then
      unended = id .. ' is dead: revive or drop it'
    elseif redis.call('HEXISTS', record(id), 'finished') == 0 or redis.call('ZSCORE', schedule, id) then
      unended = id .. ' has not ended yet'
    end
  end
  if unended and conflict == '' then
    return fail('EXISTS', unended)
  elseif unended and conflict == 'keep' then
    kept[id] = true
    due = redis.call('ZSCORE', schedule, id) or redis.call('HGET', record(id), 'due') or seconds(now)
  else
    replaced[id] = unended
    if due == '' then
      due = seconds(now + tonumber(delay))
    end
    places[#places + 1] = due
    places[#places + 1] = id
  end
  dues[#dues + 1] = due
end

-- The schedule first: ZADD refuses a due that is no number, and a key of the wrong type, before it writes.
if #places > 0 then
  redis.call('ZADD', schedule, unpack(places))
end
-- What waits for its end goes on waiting, and what runs goes on running.
local function clear(id)
  local run = redis.call('HMGET', record(id), 'worker', 'finished', 'reply')
  unline(id)
  redis.call('ZREM', dead, id)
  if run[1] and not run[2] and redis.call('LPOS', processing(run[1]), id) then
    redis.call('HDEL', record(id), 'priority', 'group', 'again')
  else
    redis.call('DEL', record(id))
    if run[3] and not run[2] then
      redis.call('HSET', record(id), 'reply', run[3])
    end
  end
end
for id, payload, priority, group in rows(3, 6) do
  if not kept[id] then
    local fields = { 'payload', payload }
    if priority ~= '' then
      fields[#fields + 1] = 'priority'
      fields[#fields + 1] = priority
    end
    if group ~= '' then
      fields[#fields + 1] = 'group'
      fields[#fields + 1] = group
    end
    if replaced[id] then
      clear(id)
    else
      -- The reply of an earlier job of this id is no answer to who waits for this one.
      redis.call('DEL', record(id), root .. 'reply:' .. id)
    end
    redis.call('HSET', record(id), unpack(fields))
  end
end
if next(replaced) then
  admit(0, now)
end
return dues
