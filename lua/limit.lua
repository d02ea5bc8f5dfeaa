#!lua flags=allow-oom
-- limit: moves nothing itself. Sets or removes limits, and admits the jobs that they now allow.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   field     concurrency, rate or burst; with `:<group>` behind it that of a group, with `:*` that of each group
--                  that has none of its own, with `:task:<task>` that of a task; weight:<group>; reserved, whose
--                  value is JSON
--        value     a number, '' = no such limit
-- REPLY  all limits as field, value, ...
-- FAILS  none
-- TWICE  the second call sets the same
-- USES   clock, expect_gate, rows, set_limit, admit_anew, limits, note_act
--
-- Jobs that have passed stay in flight: a lower concurrency takes effect once enough of them have ended. Without rows
-- it only reads.

local now, act = unpack(ARGV, 1, 2)
now = clock(now)

expect_gate(true)
local set, changed = false, false
for field, value in rows(3, 2) do
  changed = changed or (redis.call('HGET', limits, field) or '') ~= value
  set_limit(field, value)
  set = true
end
if set then
  admit_anew(now)
end
if changed then
  note_act(act)
end
return redis.call('HGETALL', limits)
