#!lua flags=allow-oom
-- retire: moves nothing itself. Stops a recurrence that its app no longer declares, and removes its scheduled
-- occurrences.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        name      of the recurrence
--        owner     the app that declared it
--        revision  of the app's present declarations
-- REPLY  'retired'; 'gone': it was removed, or is not that app's any more; 'older': the app has registered a newer
--        revision, and nothing was written
-- FAILS  none
-- TWICE  the second call does the same
-- USES   clock, recurrence, expect, declared_by, is_older, withdraw, seconds
--
-- Its record is kept with its counts and its pause, so that it goes on if a later revision declares it again. `prune`
-- deletes it.

local now, name, owner, revision = unpack(ARGV, 1, 4)
now = clock(now)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('SCARD', declared_by(owner))
if is_older(owner, revision) then
  return 'older'
end
redis.call('SREM', declared_by(owner), name)
-- A key of another type has no owner.
if not redis.call('ZSCORE', recurrences, name) or redis.pcall('HGET', key, 'owner') ~= owner then
  return 'gone'
end
withdraw(name)
redis.call('HSETNX', key, 'retired', seconds(now))
redis.call('ZADD', recurrences, '+inf', name)
return 'retired'
