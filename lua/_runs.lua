-- Runs: which worker a run belongs to, how many attempts and worker deaths count, and the one way in which runs end.

-- Whether the run (id, attempt) belongs to this worker, although the record names another worker or attempt. The caller
-- has found the id in the worker's list, from which a run that was taken away is removed. So only a newer run of the
-- same worker must be excluded: it has another attempt or, if it has not been started, the record names no worker. Any
-- other difference was written by a producer, and is ignored.
-- USES holds, worker_of, field_of, attempt_of
local function owns_despite(worker, id, attempt, named, counted)
  if not named then
    return false
  elseif named ~= worker and (counted ~= attempt or holds(worker_of(named), id) or field_of(id, 'finished')) then
    return false
  end
  return counted == attempt or attempt_of(counted) == 0
end

-- Whether the run (id, attempt), whose id is in this worker's list, belongs to the worker. If the record was replaced
-- by a key of another type, it does not.
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

-- Keep why the last attempt failed: the caller writes a reason that is not about an attempt.
-- USES last_failure, record
local function keep_failure(id)
  local failure = last_failure(id)
  if failure then
    redis.call('HSET', record(id), 'failure', failure)
  end
end

-- A worker died in which this job ran alone, or the process in which it was isolated. So this job is the cause, and its
-- earlier doubtful runs count as attempts too. `unsure`: 1 = this run, which counts anyway, may not have begun; else 0.
-- USES suspicion_of, count_attempts, mark_suspect
local function convict(id, unsure)
  local deaths, doubts, counted = suspicion_of(id)
  count_attempts(id, doubts)
  mark_suspect(id, deaths + 1, 0, counted + doubts + unsure)
end

-- End runs of a worker. Each row from `first` on is one run: id, attempt, and the last arguments of
-- `finish(id, run, scheduled, ...)`. `run[3]` to `run[8]` are the record's reply, again, stop, recurrence, reason and
-- ledger. `scheduled` is the id's score on the schedule, false if it is not there. Returns the ids of the runs that do
-- not belong to the worker any more: LOST. Nothing is written for those. Also returns the ids of the runs that `finish`
-- refused to end, each followed by the error that it returned. They stay in the worker's list.
--
-- The runs are taken out of the worker's list first, which is also the check that they are there. So Redis must not be
-- able to refuse anything in `finish` after its first write: types are checked before, and the values that it writes
-- are checked or made here. Runs that end together have mostly started together: then they are the first of the list,
-- in this order, and one command takes them all out.
-- USES processing, expect, expect_gate, owns_despite, leave, admit, fields_of, record
local function end_runs(first, width, worker, now, finish)
  local list, ids, lost, refused = processing(worker), {}, {}, {}
  expect('LLEN', list)
  expect_gate()
  for at = first, #ARGV, width do
    ids[#ids + 1] = ARGV[at]
  end
  local scores = ids[1] and redis.call('ZMSCORE', schedule, unpack(ids)) -- one command for all rows
  local head = ids[2] and redis.call('LRANGE', list, 0, #ids - 1) or {}
  local runs, ours, taken = {}, {}, 0
  for i, id in ipairs(ids) do
    local attempt = ARGV[first + (i - 1) * width + 1]
    local run = fields_of(record(id), 'worker', 'attempt', 'reply', 'again', 'stop', 'recurrence', 'reason', 'ledger')
    runs[i] = run
    ours[i] = (run[1] == worker and run[2] == attempt) or owns_despite(worker, id, attempt, run[1], run[2])
    if ours[i] and taken == i - 1 and head[i] == id then
      taken = i
    end
  end
  if taken > 0 then
    redis.call('LTRIM', list, taken, -1)
  end
  for i, id in ipairs(ids) do
    if i <= taken or (ours[i] and redis.call('LREM', list, 1, id) == 1) then
      local at = first + (i - 1) * width
      local failure = finish(id, runs[i], scores[i], unpack(ARGV, at + 2, at + width - 1))
      if failure then
        redis.call('RPUSH', list, id)
        refused[#refused + 1] = id
        refused[#refused + 1] = failure
      else
        leave(id)
      end
    else
      lost[#lost + 1] = id
    end
  end
  admit(0, now)
  return lost, refused
end

-- Put the job of an ended run back on the schedule, and return true. A job that was cancelled ends instead: false. If
-- the id was scheduled again meanwhile, that time is kept as `again`: this job runs first, and then the new one.
-- `failed`: the run counts as an attempt; else why the last attempt failed is kept besides `reason`.
-- USES abort, record, again_of, moment_of, field_of, count_attempts, keep_failure
local function send_back(id, run, scheduled, due, reason, now, failed)
  if run[5] then
    abort(id, reason, RETENTION, '', now)
    return false
  end
  local key = record(id)
  if scheduled then
    redis.call('HSET', key, 'again', redis.call('ZSCORE', schedule, id))
  end
  redis.call('ZADD', schedule, again_of(due), id)
  if failed then
    redis.call('HDEL', key, ATTEMPT_FIELDS)
  else
    count_attempts(id, -1)
    keep_failure(id)
  end
  redis.call('HSET', key, 'reason', reason)
  -- Common to all attempts of a job, for its idempotency key.
  redis.call('HSETNX', key, 'planned', moment_of(field_of(id, 'due')) or '0')
  redis.call('HDEL', key, RUN_FIELDS)
  return true
end

-- Suspects: jobs that workers held when they died. One of them may have killed its worker.
--
-- suspects  hash  id -> how many workers died, in how many of those runs it is unknown whether the job had begun, and,
--                 unless it is 0, how many such runs are counted as attempts
--
-- A producer may write every field of a record, so the suspicion is not one of them: a repeated suspect costs its
-- worker a process, and false suspects would hold the other jobs up.

-- Seconds after the last death until all suspects are forgotten, so that deleted jobs leave nothing behind.
local SUSPECTED = 7 * 86400

local suspects = root .. 'suspects'
local suspecting = redis.call('EXISTS', suspects) == 1

-- A job's deaths, doubtful runs and counted doubtful runs: 0, 0, 0 when it is not a suspect. pcall: a key of another
-- type holds no suspects.
-- USES suspects, suspecting
local function suspicion_of(id)
  if not suspecting then
    return 0, 0, 0
  end
  local text = redis.pcall('HGET', suspects, id)
  text = type(text) == 'string' and text or ''
  local deaths, doubts, counted = text:match('^(%d%d?%d?) (%d%d?%d?) ?(%d?%d?%d?)$')
  return tonumber(deaths or 0), tonumber(doubts or 0), tonumber(counted) or 0
end

-- Write how many workers died that held the job, in how many of those runs it is unknown whether it had begun, and how
-- many such runs are counted as attempts.
-- USES suspects, suspecting, milliseconds, SUSPECTED
local function mark_suspect(id, deaths, doubts, counted)
  suspecting = true
  local more = counted > 0 and ' ' .. math.min(counted, 999) or ''
  redis.pcall('HSET', suspects, id, math.min(deaths, 999) .. ' ' .. math.min(doubts, 999) .. more)
  redis.call('PEXPIRE', suspects, milliseconds(SUSPECTED))
end

-- The job is gone or has ended: it is no longer a suspect.
-- USES suspects, suspecting
local function acquit(id)
  if suspecting then
    redis.pcall('HDEL', suspects, id)
  end
end

-- A run of the job has ended: it is no longer a suspect. The record keeps the number of its doubtful runs.
-- USES suspicion_of, mark_suspect, acquit
local function clear_suspicion(id)
  local _, _, counted = suspicion_of(id)
  if counted > 0 then
    mark_suspect(id, 0, 0, counted)
  else
    acquit(id)
  end
end
