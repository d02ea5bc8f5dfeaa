#!lua flags=allow-oom
-- snooze: processing -> schedule, because the handler asked to run later, or because Redis has no memory for
-- its message. No attempt is counted.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who ran the jobs
-- ROWS   id        of the job
--        run       that ends, as `start` named it
--        due       score or '': Unix seconds, '' = `delay` from now
--        delay     score: seconds
--        reason    why the job waits
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- USES   clock, seconds, clear_suspicion, send_back, record, attempt_of, field_of, end_runs, note_run
--
-- When the same id was scheduled again meanwhile, that time is kept for a run after this one. A job that was cancelled
-- does not run again: it ends as cancelled. The handler has begun, so the rates get nothing back.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)

-- A job that snoozes again and again must not keep a worker busy: after OFTEN times it waits for LEAST seconds.
local OFTEN, LEAST = 4, 1

local function finish(id, run, scheduled, due, delay, reason)
  clear_suspicion(id)
  local times = attempt_of(field_of(id, 'snoozes')) + 1
  local least = now + (times > OFTEN and LEAST or 0)
  due = math.max(tonumber(due) or now + tonumber(delay), least)
  if send_back(id, run, scheduled, seconds(due), reason, now) then
    redis.call('HSET', record(id), 'snoozes', times)
    note_run(id, 'snoozed', now, reason, '', '', run[1], run[2], run[9])
  end
end
return end_runs(3, 5, worker, now, finish)
