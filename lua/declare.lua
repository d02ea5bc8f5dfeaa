#!lua flags=allow-oom
-- declare: moves nothing itself. Creates or changes a recurrence. A change removes its scheduled occurrences.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   name      of the recurrence
--        owner     the app that declares it in its code, '' = made at run time
--        revision  of the app's declarations, '' = none: older than any
-- ROWS   field     rule, zone, payload, priority, group, start, end, count, spread, misfire, most, overlap, window
--        value     '' = not set
-- REPLY  'made'; 'changed'; 'same': then nothing was written but the revision; 'older': the app has registered a newer
--        revision, and nothing was written
-- FAILS  none
-- TWICE  the second call finds it the same
-- USES   recurrence, expect, declared_by, is_older, rows, withdraw, end_pause, plan_from_now
--
-- It runs while Redis's memory is full: a worker declares its app's recurrences before it runs jobs, which free memory.
--
-- It is planned from now on. Its counts and last outcome are kept. If it is paused, it stays so.

local name, owner, revision = unpack(ARGV, 1, 3)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
if owner ~= '' then
  expect('SCARD', declared_by(owner))
  if is_older(owner, revision) then
    return 'older'
  end
end

local there = redis.call('ZSCORE', recurrences, name)
local was = redis.call('HMGET', key, 'owner', 'paused', 'retired')
local same = there and (was[1] or '') == owner and not was[3]
for field, value in rows(4, 2) do
  same = same and (redis.call('HGET', key, field) or '') == value
end
if owner ~= '' then
  redis.call('HSET', key, 'owner', owner, 'revision', revision)
  redis.call('SADD', declared_by(owner), name)
end
if same then
  return 'same'
end

local paused = there and was[2]
if paused then
  redis.call('ZADD', recurrences, '+inf', name)
else
  plan_from_now(name)
end
withdraw(name)
for field, value in rows(4, 2) do
  if value == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, value)
  end
end
redis.call('HDEL', key, 'reason', 'retired')
if not paused then
  end_pause(name) -- which a client has left behind
end
if owner == '' then
  redis.call('HDEL', key, 'owner', 'revision')
end
return there and 'changed' or 'made'
