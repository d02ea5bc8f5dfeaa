#!lua flags=allow-oom
-- unpause: moves nothing itself. Ends the pause of a recurrence whose time is over.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   name      of the recurrence
--        seen      the end of its pause, as the caller read it
--        next      score: its first planned time from that end on, '+inf' = none, 0 = from now on
-- REPLY  '1', or '0' when it was resumed or paused again meanwhile
-- FAILS  none
-- TWICE  the second call finds no pause
-- USES   recurrence, expect, pauses, end_pause
--
-- A dispatcher that comes late sets a time that has passed, so the misfire policy applies to the times after the pause.

local name, seen, next = unpack(ARGV, 1, 3)

expect('ZCARD', recurrences, pauses)
if redis.call('ZSCORE', pauses, name) ~= seen then
  return '0'
end
-- The recurrence may have been stopped by a client, or its record have been replaced by a key of another type.
if not redis.call('ZSCORE', recurrences, name) or redis.call('TYPE', recurrence(name)).ok ~= 'hash' then
  redis.call('ZREM', pauses, name)
  return '0'
end
local paused = end_pause(name)
if paused and redis.call('HEXISTS', recurrence(name), 'retired') == 0 then
  redis.call('ZADD', recurrences, next, name)
end
return '1'
