#!lua flags=allow-oom
-- prune: a retired recurrence -> gone.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   name      of the recurrence
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  '1', or '0' when it is gone already, is declared again, or recurs
-- FAILS  none
-- TWICE  the second call finds it gone
-- USES   recurrence, expect, delete_recurrence, note_act

local name, act = unpack(ARGV, 1, 2)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
-- A client may have put it back with a ZADD, and left the mark.
if redis.call('ZSCORE', recurrences, name) ~= 'inf' or redis.call('HEXISTS', key, 'retired') == 0 then
  return '0'
end
delete_recurrence(name)
note_act(act)
return '1'
