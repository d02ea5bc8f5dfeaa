-- Runs: which worker a run belongs to, how many attempts and worker deaths count, and the one way in which runs end.

-- Does the run (id, attempt) belong to this worker, although `worker` and `attempt` differ in the record? The caller
-- knows that the id is in the worker's list, which is the proof: a run that was taken away is in no list or in another.
-- What remains is to exclude a newer run of the same worker: it has another attempt, or it has not been started, and
-- then the record names no worker. Any other difference was written by a producer and is ignored.
-- USES holds, worker_of, field_of, attempt_of
local function owns_despite(worker, id, attempt, named, counted)
  if not named then
    return false
  elseif named ~= worker and (counted ~= attempt or holds(worker_of(named), id) or field_of(id, 'finished')) then
    return false
  end
  return counted == attempt or attempt_of(counted) == 0
end

-- Does the run (id, attempt), which is in this worker's list, belong to the worker? pcall: a record that was replaced
-- by a key of another type means no, and does not stop the other rows.
-- USES record, owns_despite
local function owns(worker, id, attempt)
  local run = redis.pcall('HMGET', record(id), 'worker', 'attempt')
  return (run[1] == worker and run[2] == attempt) or owns_despite(worker, id, attempt, run[1], run[2])
end

-- Add to a job's count of attempts, or take away from it.
-- USES record, attempt_of, field_of
local function count_attempts(id, more)
  redis.call('HSET', record(id), 'attempt', math.max(0, attempt_of(field_of(id, 'attempt')) + more))
end

-- The job was alone in a process that died, so it is the cause: its earlier doubtful runs count as attempts too.
-- USES suspicion_of, count_attempts, mark_suspect
local function convict(id)
  local deaths, doubts = suspicion_of(id)
  count_attempts(id, doubts)
  mark_suspect(id, deaths + 1, 0)
end

-- End runs of a worker, one in each row from `first` on: id, attempt, and what `finish(id, run, ...)` gets. `run` are
-- the fields reply, again, stop and recurrence of the record, at 3 to 6. Rows of runs that do not belong to the worker
-- any more are passed over. Returns the ids of those: LOST.
--
-- A run is taken out of the worker's list first, which is also the check that it is there. So nothing in `finish` may
-- be refused: types are checked before, and what it writes is checked or made here.
-- USES processing, expect, expect_gate, record, owns_despite, leave, admit
local function end_runs(first, width, worker, now, finish)
  local list, lost = processing(worker), {}
  expect('LLEN', list)
  expect_gate()
  for at = first, #ARGV, width do
    local id, attempt = ARGV[at], ARGV[at + 1]
    local run = redis.pcall('HMGET', record(id), 'worker', 'attempt', 'reply', 'again', 'stop', 'recurrence')
    local ours = (run[1] == worker and run[2] == attempt) or owns_despite(worker, id, attempt, run[1], run[2])
    if ours and redis.call('LREM', list, 1, id) == 1 then
      leave(id)
      finish(id, run, unpack(ARGV, at + 2, at + width - 1))
    else
      lost[#lost + 1] = id
    end
  end
  admit(0, now)
  return lost
end

-- Put an ended run's job back on the schedule; true when it went there. One that was told to stop ends as cancelled
-- instead. When its id was scheduled again meanwhile, that time is kept for a run after the next.
-- USES abort, RETENTION, record, again_of, moment_of
local function send_back(id, run, due, reason, now)
  if run[5] then
    abort(id, reason, RETENTION, '', now)
    return false
  end
  local key = record(id)
  local again = redis.call('ZSCORE', schedule, id)
  if again then
    redis.call('HSET', key, 'again', again)
  end
  redis.call('ZADD', schedule, again_of(due), id)
  redis.call('HSET', key, 'reason', reason)
  -- Common to all attempts of a job, for its idempotency key.
  redis.call('HSETNX', key, 'planned', moment_of(redis.call('HGET', key, 'due')) or '0')
  redis.call('HDEL', key, 'worker', 'begun', 'traceback')
  return true
end
