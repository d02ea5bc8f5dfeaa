#!lua flags=allow-oom
-- remove: a recurrence -> gone, with its scheduled occurrences. An occurrence that is due already runs.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   name      of the recurrence
-- REPLY  '1'
-- FAILS  MISSING   no recurrence has that name
-- TWICE  the second call fails with MISSING
-- USES   recurrence, expect, no_recurrence, delete_recurrence

local name = unpack(ARGV, 1, 1)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
if not redis.call('ZSCORE', recurrences, name) then
  return no_recurrence(name)
end
delete_recurrence(name)
return '1'
