#!lua flags=allow-oom
-- reschedule: schedule, backlog or ready -> schedule, with another due.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        due       score or '': Unix seconds, '' = `delay` from now
--        delay     score: seconds
--        filter    see _match.lua: of the rows, only the jobs that wait and match; '' = none
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   id        of the job; one row, unless there is a filter
-- REPLY  for each row the due, seconds; '' = it does not wait, or does not match
-- FAILS  MISSING   without a filter: no job of that id waits: it has ended, is dead, or never was
--        RUNNING   without a filter: a worker holds it
--        MOVING    without a filter: it is on its way to another shard
-- TWICE  the second call sets the same due, or the delay from the later now
-- USES   clock, rows, seconds, expect_gate, waiting_place, holder_of, field_of, fail, remove_waiting, admit,
--        read_filter, match_waiting, moving_due, IS_MOVING, note_act

local now, due, delay, filter, act = unpack(ARGV, 1, 5)
now, filter = clock(now), read_filter(filter)
if due == '' then
  due = seconds(now + tonumber(delay))
end

expect_gate()
local dues, changed = {}, {}
for id in rows(6, 1) do
  if filter and not match_waiting(id, filter) then
    dues[#dues + 1] = ''
  elseif filter or redis.call('ZSCORE', schedule, id) or waiting_place(id) then
    redis.call('ZADD', schedule, due, id)
    remove_waiting(id)
    dues[#dues + 1] = due
    changed[#changed + 1] = id
  else
    local holder = holder_of(id, field_of(id, 'worker'))
    if moving_due(id) then
      return fail('MOVING', id .. IS_MOVING)
    elseif holder then
      return fail('RUNNING', id .. ' is held by worker ' .. holder)
    end
    return fail('MISSING', id .. ' is not on the schedule, in the backlog or ready')
  end
end
admit(0, now)
note_act(act, #changed, changed)
return dues
