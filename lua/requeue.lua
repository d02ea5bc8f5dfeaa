#!lua flags=allow-oom
-- requeue: processing -> the front of ready. The jobs of a worker that died, or that a live one hands back.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who held the jobs
--        lease     the lease end that the janitor read; 'none' = it has read that the lease is gone; '' = the worker
--                  itself hands back
--        limit     count: how many at most, under 1000; one at least
--        reason    why the runs were interrupted; kept in the records
--        watch     number or '': of a worker that died: seconds for which its list is watched from now on, '' = it is
--                  not
--        ticket    count or '': only the job that was handed over with this ticket, which the worker has not begun; if
--                  none was, the worker stops waiting for a message, and passes an empty one on. 0 = it has no seat
-- ROWS   id        of a job that is handed back; no rows = all that the worker holds
--        run       as `start` named it; '' = the worker has not started it. Not looked at if the worker died
-- REPLY  'moved' = the lease has changed since, and nothing was done; 'more' = the worker holds more; 'all' = it does
--        not; list of the ids put back; list of the ids that ended as cancelled, because they were to stop
-- FAILS  none
-- TWICE  the second call finds nothing left to put back
-- USES   clock, processing, expect, expect_gate, record, convict, clear_suspicion, suspicion_of, mark_suspect,
--        count_attempts, rows, holds, worker_of, abort, leave, is_paused, counting, enter, return_to_backlog, admit,
--        owns, attempt_of, keep_failure, busy_leases, dead_workers, seconds, note_run, write_history, uncount_run,
--        batch_holds, job_fields, find_light, idle, seats, hand_over, size_of
--
-- While the queue is paused the jobs go to the front of the backlog. When there are no rows and the list is empty, the
-- lease is deleted too.
--
-- A run that a live worker hands back does not count as an attempt. If the worker died, a run counts if it is marked as
-- begun. A suspect is marked just before it begins, so one without a mark has not begun. Any other run without a mark,
-- and a suspect that was about to begin, may have begun: it does not count, but is noted as doubtful. All jobs that the
-- worker held become suspects. A run that is marked as alone caused the death, so all doubtful runs of its job count.
-- docs/design.md has the reasons.

local now, worker, lease, limit, reason, watch, ticket = unpack(ARGV, 1, 7)
now = clock(now)
local list = processing(worker)

if lease ~= '' and (redis.call('ZSCORE', leases, worker) or 'none') ~= lease then
  return { 'moved', {}, {} }
end

expect('LLEN', list)
expect('ZCARD', leases)
expect_gate()

local died = lease ~= ''
-- A run that was handed out and did not end.
local function cut_short(id, mark, named, attempt, since)
  local key = record(id)
  local deaths, doubts, counted = suspicion_of(id)
  local alone = mark == 'alone' or mark == 'soon alone'
  local begun = alone or mark == '1'
  local doubtful = mark == 'soon' or not (begun or deaths > 0)
  if died and alone then
    convict(id, mark == 'alone' and 0 or 1)
    clear_suspicion(id)
  elseif died then
    mark_suspect(id, deaths + 1, doubtful and doubts + 1 or doubts, counted)
  end
  if not died or not begun then
    count_attempts(id, -1)
  end
  redis.call('HDEL', key, 'started', RUN_FIELDS)
  if died or begun then
    if not begun then
      keep_failure(id)
    else
      redis.call('HDEL', key, ATTEMPT_FIELDS)
    end
    redis.call('HSET', key, 'reason', reason)
    local outcome = not died and 'interrupted' or (begun or doubtful) and 'lost' or 'lost before it began'
    note_run(id, outcome, now, reason, '', '', named, attempt, (begun or doubtful) and since or nil)
  else
    redis.call('HSETNX', key, 'reason', reason) -- why an earlier run failed says more than why this one did not begin
  end
end

-- The id was scheduled again during the run: that time is kept for a run after this job's, as `send_back` does.
local function keep_again(id)
  local score = redis.call('ZSCORE', schedule, id)
  if score then
    redis.call('HSET', record(id), 'again', score)
    redis.call('ZREM', schedule, id)
  end
end

-- Whether a row is not a late one: the worker has not started this job meanwhile, or another run of it.
local function is_current(id, run)
  if run ~= '' then
    return owns(worker, id, run)
  end
  local last = job_fields(id, 'worker', 'attempt', 'finished')
  return last[1] ~= worker or last[3] or attempt_of(last[2]) == 0
end

local ids = {}
for id, run in rows(8, 2) do
  if redis.call('LPOS', list, id) and (died or is_current(id, run)) then
    ids[#ids + 1] = id
  end
end
local all, waited = ticket == '' and rows(8, 2)() == nil, false
local passes_on = all
if ticket ~= '' then
  local seat = redis.pcall('HGET', seats, worker)
  local own, handed = (type(seat) == 'string' and seat or ticket):match('^(%d+) ?(%S*)')
  if own == ticket then
    redis.pcall('HDEL', seats, worker)
    waited = redis.pcall('ZREM', idle, worker) == 1
    passes_on = not waited and handed == ''
    ids = not waited and redis.call('LPOS', list, handed) and { handed } or {}
  end
elseif all then
  -- First: none of the jobs is handed over to this worker.
  waited = redis.pcall('ZREM', idle, worker) == 1
  redis.pcall('HDEL', seats, worker)
  -- From the end, so that slice by slice the whole list keeps its order.
  ids = redis.call('LRANGE', list, -math.max(1, limit), -1)
end

-- From the last to the first, each to the front: their order stays.
local back, cancelled, nowhere, listed = {}, {}, {}, 0
find_light(ids)
for i = #ids, 1, -1 do
  local id = ids[i]
  -- If the record has the wrong type, there are no fields here, and `start` decides on the job.
  local run = job_fields(id, 'worker', 'finished', 'stop', 'begun', 'attempt', 'started')
  local holder = not run[2] and run[1]
  -- Another worker runs the job, or has run it, because its id was scheduled again. That run began after both due
  -- times, so it serves both, and nothing is put back.
  local elsewhere = run[2] or (holder and holder ~= worker and holds(worker_of(holder), id))
  if run[3] and not elsewhere then
    if holder and not run[4] then
      uncount_run(id)
    end
    abort(id, 'cancelled; ' .. reason, RETENTION, '', now)
    leave(id)
    cancelled[id] = true
  elseif elsewhere then
    nowhere[id] = true
  elseif not redis.call('LPOS', ready, id) then
    if is_paused(now) or batch_holds.has(id) then
      table.insert(back, 1, id)
    else
      redis.call('LPUSH', ready, id)
      listed = listed + 1
      if counting then
        enter(id)
      end
    end
    if holder then
      cut_short(id, run[4], run[1], run[5], run[6])
      keep_again(id)
    end
  end
  redis.call('LREM', list, -1, id)
end
return_to_backlog(back)
hand_over(listed, now)
if passes_on and not waited and size_of('LLEN', ready) > 0 then
  hand_over(1, now) -- it may have got an empty message
end
write_history(now)
admit(0, now)

local put, ended = {}, {}
for _, id in ipairs(ids) do
  if cancelled[id] then
    ended[#ended + 1] = id
  elseif not nowhere[id] then
    put[#put + 1] = id
  end
end
if redis.call('EXISTS', list) == 1 then
  return { 'more', put, ended }
end
if all then
  redis.call('ZREM', leases, worker)
  redis.pcall('HDEL', busy_leases, worker)
  local watched = died and redis.pcall('ZSCORE', dead_workers, worker)
  if watch ~= '' then
    redis.pcall('ZADD', dead_workers, seconds(now + tonumber(watch)), worker)
  elseif type(watched) == 'string' and tonumber(watched) <= now then
    redis.call('ZREM', dead_workers, worker)
  end
end
return { 'all', put, ended }
