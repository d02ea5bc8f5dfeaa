#!lua flags=allow-oom
-- defer: processing -> schedule, since the job may not start now: its window is closed. No attempt is counted.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who took the jobs
-- ROWS   id        of the job
--        attempt   of the run that does not begin
--        due       Unix seconds: when it may start
--        reason    why not now
-- REPLY  ids of the runs that were not this worker's any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
--
-- When the same id was scheduled again meanwhile, that time is kept for a run after this one. One that was to stop is
-- not deferred: it ends as cancelled.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)
local list = processing(worker)
expect('LLEN', list)
expect_gate()

local lost = {}
for id, attempt, due, reason in rows(3, 4) do
  if not (runs(worker, id, attempt) and redis.call('LPOS', list, id)) then
    lost[#lost + 1] = id
  elseif send_back(list, id, due, reason, now) then
    count_attempts(id, -1)
    redis.call('HDEL', record(id), 'started')
  end
end
admit(0, now)
return lost
