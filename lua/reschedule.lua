#!lua flags=allow-oom
-- reschedule: schedule, backlog or ready -> schedule, with another due.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
--        due       Unix seconds, '' = `delay` from now
--        delay     seconds
-- REPLY  the due, seconds
-- FAILS  MISSING   no job of that id waits: it has ended, is dead, or never was
--        RUNNING   a worker holds it
-- TWICE  the second call sets the same due, or the delay from the later now
-- USES   clock, seconds, expect_gate, waiting_place, holder_of, field_of, fail, remove_waiting, admit

local now, id, due, delay = unpack(ARGV, 1, 4)
now = clock(now)
if due == '' then
  due = seconds(now + tonumber(delay))
end

expect_gate()
if not (redis.call('ZSCORE', schedule, id) or waiting_place(id)) then
  local holder = holder_of(id, field_of(id, 'worker'))
  if holder then
    return fail('RUNNING', id .. ' is held by worker ' .. holder)
  end
  return fail('MISSING', id .. ' is not on the schedule, in the backlog or ready')
end
redis.call('ZADD', schedule, due, id)
remove_waiting(id)
admit(0, now)
return due
