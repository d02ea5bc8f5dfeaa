#!lua flags=allow-oom
-- complete: processing -> finished.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        worker     who ran the jobs
--        hook       the task that gets a job for each that ends here, '' = none
--        task       the task of the jobs, if there is a hook
-- ROWS   id         of the job
--        attempt    of the run that ends
--        result     JSON
--        retention  seconds that the record is kept, '0' = not at all
--        reply      '1' = push the outcome to the job's reply list
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- USES   clock, seconds, acquit, abort, note_end, push_reply, call_hook, record, begin_anew, milliseconds, end_runs
--
-- A run that was told to stop ends as cancelled, even if it succeeded.
-- About 5 us a job: a job is near the head of its worker's short list.

local now, worker, hook, task = unpack(ARGV, 1, 4)
now = clock(now)
local moment = seconds(now)
-- The retentions as PEXPIRE takes them, by their text: most jobs have the same.
local lifetimes = {}

local function finish(id, run, scheduled, result, retention, reply)
  if run[5] then
    return abort(id, 'cancelled while it ran', tonumber(retention), reply, now)
  end
  acquit(id)
  if run[6] then
    note_end(id, 'done', now)
  end
  if reply == '1' or run[3] then
    push_reply(id, 'done', result, nil, tonumber(retention))
  end
  if hook ~= '' then
    call_hook(hook, task, id, 'done', result, nil, now)
  end
  local key = record(id)
  if run[4] or scheduled then
    begin_anew(id, run[4])
  elseif retention == '0' then
    redis.call('DEL', key)
  else
    redis.call('HSET', key, 'outcome', 'done', 'result', result, 'finished', moment)
    if run[7] then
      redis.call('HDEL', key, 'reason', 'traceback', 'failure') -- of an earlier run
    end
    lifetimes[retention] = lifetimes[retention] or milliseconds(tonumber(retention))
    redis.call('PEXPIRE', key, lifetimes[retention])
  end
end
return end_runs(5, 5, worker, now, finish)
