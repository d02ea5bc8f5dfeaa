#!lua flags=allow-oom
-- defer: processing -> schedule, because the run cannot begin now: its window is closed, or the worker has no code for
-- it. No attempt is counted.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who fetched the jobs
-- ROWS   id        of the job
--        run       that does not begin, as `start` named it
--        due       Unix seconds: when it may start
--        reason    why not now
--        window    the name of the closed window, '' = it has no name
--        text      the window's definition, as the worker read it; '' = it is kept in another queue, so not compared
--        unknown   since when workers have not known its task, Unix seconds; '' = this one knows it
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- USES   clock, seconds, send_back, refund, record, end_runs, note_deferred, abort, uncount_run
--
-- When the same id was scheduled again meanwhile, that time is kept for a run after this one. A job that is to stop is
-- not deferred: it ends as cancelled, and as its run had not begun, without an attempt. The part of a deferred job in
-- the rates is undone, so jobs that come again and again do not hold up the others.
--
-- A job whose task was unknown is noted in its record, with the due that it gets here: the next worker that does not
-- know the task sees by it how long that has been so. A job that has another due then is judged again.
--
-- A job that waits for a named window is noted under `deferred:<window>` with its due, for `reopen`. If the window was
-- changed since the worker read it, the job is due at once, and a worker checks the window again.
--
-- The windows for jobs of a shard are kept in the queue itself: the worker compares them after this, and calls `reopen`
-- (evsched/worker/notices.py).

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)

local function finish(id, run, scheduled, due, reason, window, text, unknown)
  local changed = text ~= '' and redis.pcall('HGET', root .. 'windows', window) ~= text
  due = changed and seconds(now) or due
  if run[5] then
    uncount_run(id)
    abort(id, 'cancelled before it ran', RETENTION, '', now)
    return
  end
  send_back(id, run, scheduled, due, reason, now)
  refund(id, now)
  redis.call('HDEL', record(id), 'started')
  if unknown ~= '' then
    redis.call('HSET', record(id), 'unknown', unknown .. ' ' .. due)
  end
  if window ~= '' and not changed then
    note_deferred(window, id, due, now)
  end
end
return end_runs(3, 7, worker, now, finish)
