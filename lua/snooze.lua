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
--        signal    that the job waits for, until `due`, '' = none
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- USES   clock, seconds, clear_suspicion, send_back, record, attempt_of, field_of, end_runs, note_run, signal_of
--
-- When the same id was scheduled again meanwhile, that time is kept for a run after this one. A job that was cancelled
-- does not run again: it ends as cancelled. The handler has begun, so the rates get nothing back.
--
-- A job whose signal has come since its run asked for it is due now. Otherwise `signal` makes it due when it comes:
-- each of the two scripts looks for the writes of the other.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)

-- A job that snoozes again and again must not keep a worker busy: after OFTEN times it waits for LEAST seconds.
local OFTEN, LEAST = 4, 1

local function finish(id, run, scheduled, due, delay, reason, signal)
  clear_suspicion(id)
  local times = attempt_of(field_of(id, 'snoozes')) + 1
  local come = signal ~= '' and signal_of(id, signal)
  if come then
    due = now
  elseif signal ~= '' then
    due = math.max(tonumber(due) or now, now)
  else
    due = math.max(tonumber(due) or now + tonumber(delay), now + (times > OFTEN and LEAST or 0))
  end
  if send_back(id, run, scheduled, seconds(due), reason, now) then
    if signal == '' then
      redis.call('HSET', record(id), 'snoozes', times)
    elseif not come then
      redis.call('HSET', record(id), 'waiting', signal)
    end
    note_run(id, 'snoozed', now, reason, '', '', run[1], run[2], run[9])
  end
end
return end_runs(3, 6, worker, now, finish)
