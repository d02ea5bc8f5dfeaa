#!lua flags=allow-oom
-- retry: processing -> schedule, for another attempt later.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who ran the jobs
-- ROWS   id        of the job
--        run       that ends, as `start` named it
--        delay     score: seconds from now to the next attempt
--        reason    why this attempt failed
--        killed    '1' = it killed the process in which it was isolated; 'unsure' = that process died before the
--                  handler began; '' = neither, and it is not a suspect any more
--        trace     the traceback of the handler's exception, '' = none
--        error     the class of the exception, '' = none
--        location  the line of the handler's code that raised it, '' = none
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- USES   clock, convict, clear_suspicion, send_back, seconds, end_runs, note_raised, note_run
--
-- If the same id was scheduled again meanwhile, that time is kept: the retry runs first, and then the new job. A job
-- that was cancelled is not run again: it ends as cancelled.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)

local function finish(id, run, scheduled, delay, reason, killed, trace, error, location)
  if killed ~= '' then
    convict(id, killed == 'unsure' and 1 or 0)
  else
    clear_suspicion(id)
  end
  if send_back(id, run, scheduled, seconds(now + tonumber(delay)), reason, now, true) then
    note_raised(id, trace, error, location)
    note_run(id, 'failed', now, reason, error, location, run[1], run[2], run[9])
  end
end
return end_runs(3, 8, worker, now, finish)
