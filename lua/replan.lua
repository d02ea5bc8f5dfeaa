#!lua flags=allow-oom
-- replan: moves nothing itself. Has a recurrence planned again from now on: a calendar that it skips was changed, or
-- the window that it names was set.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        name      of the recurrence
-- REPLY  '1', or '0' when it does not recur, because it is paused, retired or gone
-- FAILS  none
-- TWICE  the second call does the same
-- USES   clock, expect, recurrence, restart
--
-- Occurrences that are on the schedule ahead of their time are removed, and planned again if their days are open.
-- Overdue ones are left: dispatchers compare them with the calendar when they make them.

local now, name = unpack(ARGV, 1, 2)
now = clock(now)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
local score = tonumber(redis.call('ZSCORE', recurrences, name) or '')
if not score or redis.call('HEXISTS', key, 'paused') + redis.call('HEXISTS', key, 'retired') > 0 then
  return '0'
end
if score > now or score <= 0 then
  restart(name)
end
return '1'
