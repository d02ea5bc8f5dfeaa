#!lua flags=allow-oom
-- hold: moves nothing itself. Pauses a recurrence and withdraws its scheduled occurrences, or resumes it from now on.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        name      of the recurrence
--        paused    '1', or '' = go on
--        ends      score or '': Unix seconds: when the pause ends by itself, '' = it does not
--        why       a sentence for operators, '' = none
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  '1', or '0' when it is resumed and still does not recur, because it is retired
-- FAILS  MISSING   no recurrence has that name
-- TWICE  the second call does the same
-- USES   clock, recurrence, expect, no_recurrence, pauses, begin_pause, end_pause,
--        plan_from_now, note_act
--
-- The times that pass while it is paused do not count as missed. Another pause takes the place of the first.

local now, name, paused, ends, why, act = unpack(ARGV, 1, 6)
now = clock(now)
local key = recurrence(name)

expect('ZCARD', schedule, recurrences)
expect('HLEN', key)
if not redis.call('ZSCORE', recurrences, name) then
  return no_recurrence(name)
end
if paused == '1' then
  if ends ~= '' then
    expect('ZCARD', pauses)
  end
  begin_pause(name, ends, why, now)
  note_act(act)
  return '1'
end
local retired = redis.call('HEXISTS', key, 'retired') == 1
if end_pause(name) then
  note_act(act)
  if not retired then
    plan_from_now(name)
  end
end
return retired and '0' or '1'
