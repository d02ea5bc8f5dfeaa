#!lua flags=allow-oom
-- abort: processing -> finished, as cancelled. A run that was told to stop has ended.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        worker     who ran the jobs
-- ROWS   id         of the job
--        attempt    of the run that ends
--        retention  seconds that the record is kept
--        reply      '1' = push the outcome to the job's reply list
-- REPLY  ids of the runs that were not this worker's any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
--
-- When the same id was scheduled again after it was told to stop, it runs again.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)
local list = processing(worker)
expect('LLEN', list)
expect_gate()

local lost = {}
for id, attempt, retention, reply in rows(3, 4) do
  if runs(worker, id, attempt) and redis.call('LPOS', list, id) then
    abort(id, 'cancelled while it ran', tonumber(retention), reply, now)
    redis.call('LREM', list, 1, id)
    leave(id)
  else
    lost[#lost + 1] = id
  end
end
admit(0, now)
return lost
