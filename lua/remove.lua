#!lua flags=allow-oom
-- remove: a recurrence -> gone, with its scheduled occurrences. An occurrence that is due already runs.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   name      of the recurrence
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  '1'
-- FAILS  MISSING   no recurrence has that name
-- TWICE  the second call fails with MISSING
-- USES   recurrence, expect, no_recurrence, delete_recurrence, note_act

local name, act = unpack(ARGV, 1, 2)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
if not redis.call('ZSCORE', recurrences, name) then
  return no_recurrence(name)
end
delete_recurrence(name)
note_act(act)
return '1'
