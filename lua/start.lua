#!lua flags=allow-oom
-- start: ready -> processing, the second half of a fetch. Counts the attempts of the jobs that BLMOVE moved, and
-- fetches more: as many as are asked for, but not the other workers' share.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who fetches
--        lease     number: seconds: the worker holds jobs from here on, so its lease is the short one
--        hold      count: how many jobs it may hold in all, under 1000
--        cap       count: bytes that a payload may have; it may have been replaced since dispatch checked it
--        wait      '1' = if it finds ready empty and may hold more, the worker waits for a message, '' = it does not
-- ROWS   id        already in the worker's list: moved there by BLMOVE, or left there by a lost reply
-- REPLY  now; '1' when ready holds more, else '0'; '1' when the worker waits for a message from here on, else '0'; '1'
--        when it had a lease, '0' when it was lost;
--        list of id, run, due, payload, planned of the jobs to run; a run is named by its attempt and when it started;
--        list of id, reason of the jobs that went to dead;
--        list of id, deaths, doubts, counted of the suspects among them: how many workers died that held the job, in
--        how many of those runs it is not known whether the job had begun, and how many such runs `attempt` counts
-- FAILS  none
-- TWICE  a job that this worker has started already is handed out again with the same attempt, one that has ended is
--        not; `hold` bounds the rest
-- RARE   batch_holds, return_to_backlog, bury, abort, remove_waiting, keep_misnamed, uncount_run, with_failure, leave,
--        enter, field_of, holds, worker_of, size_of, begin_count, judge_groups, reopen, spend, tokens, end_queue_pause,
--        note_turns, joined_rows, milliseconds
-- USES   clock, processing, expect, expect_gate, rows, admit, seconds, moment_of, holds, worker_of, NOT_A_HASH,
--        keep_misnamed, TOO_LONG, leave, bury, abort, remove_waiting, counting, enter, attempt_of, name_of_run,
--        suspicion_of, field_of, payload_size, size_of, with_failure, idle, busy_leases, write_history, uncount_run,
--        batch_holds, policy, return_to_backlog, find_light, job_fields, record_key, light_of, light_text, light
--
-- About 3 us a job. The payloads of a call are bounded: jobs beyond the bound stay in ready or, if they are in the
-- rows, in the worker's list. An id can be in the lists of two workers, if it was scheduled again and dispatched
-- between BLMOVE and `start`. It then runs once, with the current record, because both due times came before that run
-- began: the other worker drops it, also if the run has ended by then.

local now, worker, lease, hold, cap, wait = unpack(ARGV, 1, 6)
now, cap = clock(now), tonumber(cap)
local ends = now + tonumber(lease)
local list = processing(worker)

-- How many bytes of records one call reads; one job at least.
local BYTES_MOST = 1048576
-- A worker takes up to this number of jobs whatever its share is: fewer are not worth a call of their own.
local SHARE_LEAST = 4
-- A worker that holds its part of all jobs already takes this fraction of an equal part of the waiting jobs.
local BEYOND = 0.25

expect('LLEN', list)
expect('ZCARD', dead, leases, wait == '1' and idle or nil)
expect_gate()

-- How many of `most` jobs this worker may take now. If fewer wait than all workers could take, each has a right to an
-- equal part of the jobs that wait or are held. How many slots the others have is not known. So a worker that holds its
-- part takes some more and asks again, until none wait; by then the others have been woken. O(workers), 0.5 us each,
-- and only if fewer jobs wait than all could take.
local function share(held, most)
  local waiting, workers = redis.call('LLEN', ready) + redis.call('ZCARD', backlog), redis.call('ZCARD', leases)
  if workers < 2 or waiting >= most * workers then
    return most
  end
  local all = waiting
  for _, other in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    all = all + size_of('LLEN', processing(other))
  end
  local part = math.max(math.ceil(all / workers) - held, math.ceil(BEYOND * waiting / workers))
  return math.min(most, math.max(part, SHARE_LEAST))
end

local held = redis.call('LLEN', list)
local more = tonumber(hold) - held
if more > SHARE_LEAST then
  more = share(held, more)
end
local ids, known = {}, {}
-- An id that was scheduled again and dispatched before it started is here twice: it is one run, with the current
-- record.
local function add(id)
  if not known[id] then
    known[id] = true
    ids[#ids + 1] = id
  elseif #redis.call('LPOS', list, id, 'COUNT', 2) > 1 then
    redis.call('LREM', list, -1, id)
  end
end
for id in rows(7, 1) do
  if redis.call('LPOS', list, id) then
    add(id)
  end
end
local given = #ids
if more > 0 then
  admit(more, now)
  local taken = redis.call('LRANGE', ready, 0, more - 1)
  if #taken > 0 then
    redis.call('RPUSH', list, unpack(taken))
    redis.call('LTRIM', ready, #taken, -1)
    for _, id in ipairs(taken) do
      add(id)
    end
  end
end
admit(0, now)

-- Return the jobs that do not fit in the reply, from `first` on, to the front of ready. Those in the rows stay in the
-- worker's list.
local function return_to_ready(first)
  for i = #ids, math.max(first, given + 1), -1 do
    redis.call('LPUSH', ready, ids[i])
    redis.call('LREM', list, -1, ids[i])
  end
end

local started, buried, suspected, freed, bytes = {}, {}, {}, false, 0
local moment = seconds(now)
-- The light jobs that start here: id, text, ...
local begun_light = {}
find_light(ids)
for i, id in ipairs(ids) do
  local run = job_fields(id, 'payload', 'attempt', 'due', 'worker', 'finished', 'stop', 'planned')
  local payload, attempt, due, holder, finished, stop, planned = unpack(run, 1, 7)
  local size = not run.err and payload_size(id, payload)
  if not size or size == 0 or size > cap then
    payload = nil -- it may have been replaced since dispatch checked it
  else
    if bytes > 0 and bytes + size > BYTES_MOST then
      return_to_ready(i)
      break
    end
    bytes = bytes + size
    payload = size > #payload and redis.call('HGET', record_key(id), 'payload') or payload
    due = moment_of(due)
  end
  local elsewhere = holder and holder ~= worker and holds(worker_of(holder), id)
  if not payload then
    local reason, kept = 'its record was gone when a worker took it: DEL a record only after a ZREM of its id', id
    if not size then
      reason, kept = 'the key of its record is ' .. NOT_A_HASH, keep_misnamed(id)
    elseif size > cap then
      reason = TOO_LONG:format(size, cap) .. ', since it was due: do not HSET it then'
    end
    redis.call('LREM', list, 1, id)
    leave(id)
    reason = with_failure(kept, reason)
    bury(kept, 'dead', reason, now)
    buried[#buried + 1] = kept
    buried[#buried + 1] = reason
  elseif not due and redis.call('ZSCORE', schedule, id) then
    -- The job was replaced between BLMOVE and start, and the new one waits for its own time. Or it was in two
    -- lists, and another attempt follows the run from the other one.
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif stop and not finished then
    if holder == worker and not field_of(id, 'begun') then
      uncount_run(id) -- the reply that handed it out was lost
    end
    abort(id, 'cancelled before it ran', RETENTION, '', now)
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif elsewhere then
    redis.call('LREM', list, -1, id)
  elseif finished then
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif policy.batches and (holder ~= worker or attempt_of(attempt) == 0) and batch_holds.has(id) then
    -- Its batch was paused after it passed the gate.
    redis.call('LREM', list, 1, id)
    leave(id)
    freed = true
    remove_waiting(id) -- it may also have waited there
    return_to_backlog({ id })
  else
    if i <= given and holder ~= worker and remove_waiting(id) then
      freed = true -- it also waited there
    end
    if counting then
      -- It is counted already, unless it was in two lists and the run in the other has ended.
      enter(id)
    end
    local attempts, since = attempt_of(attempt), moment
    if holder ~= worker or attempts == 0 then -- 0: a client wrote this worker's name
      attempts = attempts + 1
      if light_of(id) then
        local last = #begun_light
        begun_light[last + 1], begun_light[last + 2] = id, light_text(payload, run[3], moment, worker)
      else
        redis.call('HSET', record_key(id), 'attempt', attempts, 'worker', worker, 'started', moment)
      end
    else
      since = moment_of(field_of(id, 'started')) or ''
    end
    local at = #started
    planned = planned and moment_of(planned)
    started[at + 1], started[at + 2] = id, name_of_run(attempts, since)
    started[at + 3], started[at + 4] = due or moment, payload
    started[at + 5] = planned or due or moment
    local deaths, doubts, counted = suspicion_of(id)
    if deaths + counted > 0 then
      local last = #suspected
      suspected[last + 1], suspected[last + 2], suspected[last + 3], suspected[last + 4] = id, deaths, doubts, counted
    end
  end
end

if #begun_light > 0 then
  redis.call('HSET', light, unpack(begun_light))
end
if freed then
  admit(0, now)
end
write_history(now)
local leased = redis.call('ZSCORE', leases, worker)
if redis.call('LLEN', list) > 0 then
  -- A worker that holds nothing sends few heartbeats, and keeps its long lease.
  if not leased then
    redis.pcall('HSET', busy_leases, worker, lease) -- Redis has lost what the worker's heartbeats wrote
  end
  redis.call('ZADD', leases, seconds(ends), worker)
end
local left = redis.call('LLEN', ready) > 0
local waits = wait == '1' and not left and redis.call('LLEN', list) < tonumber(hold)
if waits then
  redis.call('ZADD', idle, 'NX', moment, worker)
end
return { moment, left and '1' or '0', waits and '1' or '0', leased and '1' or '0', started, buried, suspected }
