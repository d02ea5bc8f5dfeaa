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

-- Does the run (id, attempt), which is in this worker's list, belong to the worker? A record that was replaced by a key
-- of another type means no.
-- USES owns_despite, fields_of, record
local function owns(worker, id, attempt)
  local run = fields_of(record(id), 'worker', 'attempt')
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

-- End runs of a worker, one in each row from `first` on: id, attempt, and what `finish(id, run, scheduled, ...)` gets
-- after its third argument. `run` are the fields reply, again, stop and recurrence of the record, at 3 to 6;
-- `scheduled` is false unless the id is on the schedule again. Returns the ids of the runs that do not belong to the
-- worker any more: LOST. Nothing is written for those.
--
-- A run is taken out of the worker's list first, which is also the check that it is there. So nothing in `finish` may
-- be refused: types are checked before, and what it writes is checked or made here.
-- USES processing, expect, expect_gate, owns_despite, leave, admit, fields_of, record
local function end_runs(first, width, worker, now, finish)
  local list, ids, lost = processing(worker), {}, {}
  expect('LLEN', list)
  expect_gate()
  for at = first, #ARGV, width do
    ids[#ids + 1] = ARGV[at]
  end
  local scores = ids[1] and redis.call('ZMSCORE', schedule, unpack(ids)) -- one command for all rows
  for i, id in ipairs(ids) do
    local at = first + (i - 1) * width
    local attempt = ARGV[at + 1]
    local run = fields_of(record(id), 'worker', 'attempt', 'reply', 'again', 'stop', 'recurrence')
    local ours = (run[1] == worker and run[2] == attempt) or owns_despite(worker, id, attempt, run[1], run[2])
    if ours and redis.call('LREM', list, 1, id) == 1 then
      leave(id)
      finish(id, run, scores[i], unpack(ARGV, at + 2, at + width - 1))
    else
      lost[#lost + 1] = id
    end
  end
  admit(0, now)
  return lost
end

-- Put an ended run's job back on the schedule; true when it went there. One that was told to stop ends as cancelled
-- instead. When its id was scheduled again meanwhile, that time is kept for a run after the next.
-- USES abort, RETENTION, record, again_of, moment_of, field_of
local function send_back(id, run, scheduled, due, reason, now)
  if run[5] then
    abort(id, reason, RETENTION, '', now)
    return false
  end
  local key = record(id)
  if scheduled then
    redis.call('HSET', key, 'again', redis.call('ZSCORE', schedule, id))
  end
  redis.call('ZADD', schedule, again_of(due), id)
  redis.call('HSET', key, 'reason', reason)
  -- Common to all attempts of a job, for its idempotency key.
  redis.call('HSETNX', key, 'planned', moment_of(field_of(id, 'due')) or '0')
  redis.call('HDEL', key, 'worker', 'begun', 'traceback')
  return true
end
