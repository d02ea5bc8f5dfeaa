#!lua flags=allow-oom
-- bury: processing -> dead, with the reason.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who ran the jobs
--        hook      the task that gets a job for each that ends here, '' = none
--        task      the task of the jobs, if there is a hook
-- ROWS   id        of the job
--        run       that ends, as `start` named it
--        reason    why the job is given up; if it did not begin, why its last attempt failed is added
--        reply     '1' = push the outcome to the job's reply list
--        outcome   'dead', or 'expired'
--        how       'killed' = it killed the process in which it was isolated, 'never' = it did not begin, ''
--        trace     the traceback of the handler's exception, '' = none
--        error     the class of the exception, '' = none
--        location  the line of the handler's code that raised it, '' = none
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- USES   clock, expect, convict, abort, push_reply, call_hook, waiting_place, note_end, note_history, record,
--        begin_next, bury, end_runs, with_failure, note_raised, uncount_run
--
-- When the same id was scheduled again meanwhile, the job is not dead: it runs again, with all its attempts.

local now, worker, hook, task = unpack(ARGV, 1, 4)
now = clock(now)
expect('ZCARD', dead)

local function finish(id, run, scheduled, reason, reply, outcome, how, trace, error, location)
  if how == 'killed' then
    convict(id, 0)
  elseif how == 'never' then
    uncount_run(id)
    reason = with_failure(id, reason)
  end
  if run[5] then
    return abort(id, 'cancelled while it ran', RETENTION, reply, now)
  end
  if how ~= 'never' then
    redis.call('HDEL', record(id), ATTEMPT_FIELDS) -- of an earlier run
    note_raised(id, trace, error, location)
  end
  if reply == '1' or run[3] then
    push_reply(id, outcome, 'null', reason, 0)
  end
  if hook ~= '' then
    call_hook(hook, task, id, outcome, 'null', reason, now)
  end
  if run[4] or scheduled or waiting_place(id) then
    note_history(id, outcome, now)
    note_end(id, outcome, now, reason, '')
    redis.call('HSET', record(id), 'reason', reason)
    begin_next(id, run[4])
  else
    bury(id, outcome, reason, now)
  end
end
return end_runs(5, 9, worker, now, finish)
