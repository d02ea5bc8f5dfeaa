#!lua flags=allow-oom
-- hold: moves nothing itself. Pauses a recurrence and withdraws its scheduled occurrences, or resumes it from now on.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        name      of the recurrence
--        paused    '1', or '' = go on
-- REPLY  '1'
-- FAILS  MISSING   no recurrence has that name
-- TWICE  the second call does the same
-- USES   clock, recurrence, expect, fail, withdraw, seconds
--
-- The times that pass while it is paused do not count as missed.

local now, name, paused = unpack(ARGV, 1, 3)
now = clock(now)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
if not redis.call('ZSCORE', recurrences, name) then
  return fail('MISSING', name .. ' is no recurrence of this queue')
end
if paused == '1' then
  withdraw(name)
  redis.call('HSET', key, 'paused', seconds(now))
  redis.call('ZADD', recurrences, '+inf', name)
elseif redis.call('HDEL', key, 'paused') == 1 then
  redis.call('ZADD', recurrences, 0, name)
end
return '1'
