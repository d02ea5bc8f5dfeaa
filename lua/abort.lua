#!lua flags=allow-oom
-- abort: processing -> finished, as cancelled. A run that was to stop has ended.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        worker     who ran the jobs
-- ROWS   id         of the job
--        run        that ends, as `start` named it
--        retention  number: seconds that the record is kept
--        reply      '1' = push the outcome to the job's reply list
--        began      '1' = the run had begun, '' = it had not, and costs no attempt
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- USES   clock, abort, end_runs, uncount_run
--
-- If the same id was scheduled again after the stop was requested, it runs again.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)

local function finish(id, _, _, retention, reply, began)
  if began ~= '1' then
    uncount_run(id)
  end
  abort(id, began == '1' and 'cancelled while it ran' or 'cancelled before it ran', tonumber(retention), reply, now)
end
return end_runs(3, 5, worker, now, finish)
