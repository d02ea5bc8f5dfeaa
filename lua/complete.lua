#!lua flags=allow-oom
-- complete: processing -> finished.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        worker     who ran the jobs
-- ROWS   id         of the job
--        attempt    of the run that ends
--        result     JSON
--        retention  seconds that the record is kept, '0' = not at all
--        reply      '1' = push the outcome to the job's reply list
-- REPLY  ids of the runs that were not this worker's any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
--
-- A run that was told to stop ends as cancelled, whatever came of it.
-- About 5 us a job: a job is near the head of its worker's short list.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)
local list, moment = processing(worker), seconds(now)
expect('LLEN', list)
expect_gate()

local lost = {}
for id, attempt, result, retention, reply in rows(3, 5) do
  local key = record(id)
  -- pcall: see runs()
  local run = redis.pcall('HMGET', key, 'worker', 'attempt', 'reply', 'again', 'recurrence', 'stop')
  local ours = (run[1] == worker and run[2] == attempt) or runs_despite(worker, id, attempt, run[1], run[2])
  if ours and redis.call('LREM', list, 1, id) == 1 then
    leave(id)
    if run[6] then
      abort(id, 'cancelled while it ran', tonumber(retention), reply, now)
    else
      if run[5] then
        note_end(id, 'done', now)
      end
      if reply == '1' or run[3] then
        answer(id, 'done', result, nil, tonumber(retention))
      end
      if run[4] or redis.call('ZSCORE', schedule, id) then
        renew(id, run[4])
      elseif retention == '0' then
        redis.call('DEL', key)
      else
        redis.call('HSET', key, 'outcome', 'done', 'result', result, 'finished', moment)
        if attempt ~= '1' then
          redis.call('HDEL', key, 'traceback') -- of the run before: only then can there be one
        end
        redis.call('PEXPIRE', key, milliseconds(tonumber(retention)))
      end
    end
  else
    lost[#lost + 1] = id
  end
end
admit(0, now)
return lost
