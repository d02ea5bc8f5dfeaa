#!lua flags=allow-oom
-- declare: moves nothing itself. Creates or changes a recurrence. A change removes its scheduled occurrences.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   name      of the recurrence
--        owner     the app that declares it in its code, '' = made at run time
-- ROWS   field     rule, zone, payload, priority, group, start, end, count, spread, misfire, most, overlap, window
--        value     '' = not set
-- REPLY  'made', 'changed', or 'same': then nothing was written
-- FAILS  none
-- TWICE  the second call finds it the same
-- USES   recurrence, expect, rows, withdraw
--
-- It runs while Redis's memory is full: a worker declares its app's recurrences before it runs jobs, which free memory.
--
-- Its next planned time is 0, which a dispatcher reads as "from now on". Its counts and last outcome are kept.

local name, owner = unpack(ARGV, 1, 2)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
local there = redis.call('ZSCORE', recurrences, name)
local same = there and (redis.call('HGET', key, 'owner') or '') == owner
for field, value in rows(3, 2) do
  same = same and (redis.call('HGET', key, field) or '') == value
end
if same then
  return 'same'
end

redis.call('ZADD', recurrences, 0, name)
withdraw(name)
local before = redis.call('HGET', key, 'owner')
if before then
  redis.call('SREM', root .. 'declared:' .. before, name)
end
for field, value in rows(3, 2) do
  if value == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, value)
  end
end
redis.call('HDEL', key, 'owner', 'paused', 'reason')
if owner ~= '' then
  redis.call('HSET', key, 'owner', owner)
  redis.call('SADD', root .. 'declared:' .. owner, name)
end
return there and 'changed' or 'made'
