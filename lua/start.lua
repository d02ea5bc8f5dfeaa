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
--        ticket    count or '': if it finds ready empty and may hold more, the worker waits for a message: of a job
--                  that is handed over, with this ticket; an empty one if the ticket is 0. '' = it does not wait
-- ROWS   id        already in the worker's list: moved there by BLMOVE, or left there by a lost reply
-- REPLY  now; '1' when ready holds more, else '0'; '1' when the worker waits for a message from here on, else '0'; '1'
--        when it had a lease, '0' when it was lost; how many jobs its list holds;
--        list of id, run, due, payload, planned of the jobs to run; a run is named by its attempt and when it started;
--        list of id, reason of the jobs that went to dead;
--        list of id, deaths, doubts, counted of the suspects among them: how many workers died that held the job, in
--        how many of those runs it is not known whether the job had begun, and how many such runs `attempt` counts
-- FAILS  none
-- TWICE  a job that this worker has started already is handed out again with the same attempt, one that has ended is
--        not; `hold` bounds the rest
-- RARE   batch_holds, return_to_backlog, bury, abort, remove_waiting, keep_misnamed, uncount_run, with_failure, leave,
--        enter, field_of, holds, worker_of, size_of, job_fields, payload_size, attempt_of, suspicion_of, open,
--        hand_over, write_history, light_of
-- USES   clock, processing, expect, expect_gate, rows, admit, seconds, size_of, idle, busy_leases, write_history,
--        find_light, light_text, counting, suspecting, name_of_run, first_sizes, policy, throttled, light_jobs, light,
--        seats, hand_over, leave, job_fields, payload_size, record_key, moment_of, holds, worker_of, NOT_A_HASH,
--        keep_misnamed, TOO_LONG, with_failure, bury, field_of, uncount_run, abort, attempt_of, batch_holds,
--        remove_waiting, return_to_backlog, enter, light_of, recorded, suspicion_of
--
-- About 3 us a job. The payloads of a call are bounded: jobs beyond the bound stay in ready or, if they are in the
-- rows, in the worker's list. An id can be in the lists of two workers, if it was scheduled again and dispatched
-- between BLMOVE and `start`. It then runs once, with the current record, because both due times came before that run
-- began: the other worker drops it, also if the run has ended by then.

local now, worker, lease, hold, cap, ticket = unpack(ARGV, 1, 6)
now, cap = clock(now), tonumber(cap)
local ends = now + tonumber(lease)
local list = processing(worker)

-- How many bytes of records one call reads; one job at least.
local BYTES_MOST = 1048576
-- A worker takes up to this number of jobs whatever its share is: fewer are not worth a call of their own.
local SHARE_LEAST = 4
-- Seconds by which a worker that holds jobs waits behind one that holds none.
local LATER = 1e9
-- A worker that holds its part of all jobs already takes this fraction of an equal part of the waiting jobs.
local BEYOND = 0.25

expect('LLEN', list)
expect('ZCARD', dead, leases, ticket ~= '' and idle or nil)
expect_gate()

-- Each question ends the seat of the one before: a worker takes no message that has an older ticket. If the job of such
-- a message is in the rows, it begins by this reply, so it is not put back any more as one that has not begun.
local since = redis.pcall('ZSCORE', idle, worker)
if type(since) == 'string' then
  redis.call('ZREM', idle, worker)
end
if type(since) == 'string' or rows(7, 1)() then
  redis.pcall('HDEL', seats, worker)
end

-- How many jobs this worker may take now. If fewer wait than all workers could take, each has a right to an equal part
-- of the jobs that wait or are held. How many slots the others have is not known. So a worker that holds its part takes
-- some more and asks again, until none wait; by then the others have been woken. O(workers), 0.5 us each, and only if
-- fewer jobs wait than all could take.
local held = first_sizes[list]
local more = tonumber(hold) - held
local waiting, workers = first_sizes[ready] + first_sizes[backlog], first_sizes[leases]
if more > SHARE_LEAST and workers > 1 and waiting < more * workers then
  local all = waiting
  for _, other in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    all = all + size_of('LLEN', processing(other))
  end
  local part = math.max(math.ceil(all / workers) - held, math.ceil(BEYOND * waiting / workers))
  more = math.min(more, math.max(part, SHARE_LEAST))
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
local taken = {}
if more > 0 then
  admit(more, now)
  taken = redis.call('LRANGE', ready, 0, more - 1)
end
if #taken > 0 then
  redis.call('RPUSH', list, unpack(taken))
  redis.call('LTRIM', ready, #taken, -1)
  for i = 1, #taken do
    add(taken[i])
  end
end
if #taken > 0 or more <= 0 then
  admit(0, now)
end

local moment, started, buried, suspected = seconds(now), {}, {}, {}
if #ids > 0 then
  -- The new texts of light jobs that start, as id, text, ...; how many bytes of payloads the reply has room for;
  -- whether the gate may let other jobs pass.
  local light_begins, room, freed = {}, math.max(BYTES_MOST, cap), false

  -- Take a job out of the worker's list that does not run.
  local function drop(id)
    redis.call('LREM', list, 1, id)
    leave(id)
    freed = true
  end

  -- Start a job that is in the worker's list, or end it there if it cannot run. Returns false if there is no room for
  -- its payload; then nothing has happened. `fetched`: BLMOVE moved it.
  local function hand_out(id, fetched)
    local run = job_fields(id, 'payload', 'attempt', 'due', 'worker', 'finished', 'stop', 'planned')
    local payload, attempt, due, holder, finished, stop, planned = unpack(run, 1, 7)
    local size = not run.err and payload_size(id, payload)
    if not size or size == 0 or size > cap then
      payload = nil -- it may have been replaced since dispatch checked it
    elseif size > room then
      return false
    else
      room = room - size
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
      drop(id)
      reason = with_failure(kept, reason)
      bury(kept, 'dead', reason, now)
      local at = #buried
      buried[at + 1], buried[at + 2] = kept, reason
    elseif not due and redis.call('ZSCORE', schedule, id) then
      -- The job was replaced between BLMOVE and start, and the new one waits for its own time. Or it was in two lists,
      -- and another attempt follows the run from the other one.
      drop(id)
    elseif stop and not finished then
      if holder == worker and not field_of(id, 'begun') then
        uncount_run(id) -- the reply that handed it out was lost
      end
      abort(id, 'cancelled before it ran', RETENTION, '', now)
      drop(id)
    elseif elsewhere then
      redis.call('LREM', list, -1, id)
    elseif finished then
      drop(id)
    elseif policy.batches and (holder ~= worker or attempt_of(attempt) == 0) and batch_holds.has(id) then
      -- Its batch was paused after it passed the gate.
      drop(id)
      remove_waiting(id) -- it may also have waited there
      return_to_backlog({ id })
    else
      if
        fetched
        and holder ~= worker
        and redis.call('EXISTS', backlog, throttled, ready) > 0
        and remove_waiting(id)
      then
        freed = true -- it also waited there
      end
      if counting then
        -- It is counted already, unless it was in two lists and the run in the other has ended.
        enter(id)
      end
      local attempts, begun = attempt_of(attempt), moment
      if holder ~= worker or attempts == 0 then -- 0: a client wrote this worker's name
        attempts = attempts + 1
        local job = light_of(id)
        if job then
          local text, last =
            light_text(job.payload, (recorded[id] and '=' or '') .. job.due, moment, worker), #light_begins
          light_begins[last + 1], light_begins[last + 2] = id, text
        else
          redis.call('HSET', record_key(id), 'attempt', attempts, 'worker', worker, 'started', moment)
        end
      else
        begun = moment_of(field_of(id, 'started')) or ''
      end
      local at = #started
      planned = planned and moment_of(planned)
      started[at + 1], started[at + 2] = id, name_of_run(attempts, begun)
      started[at + 3], started[at + 4] = due or moment, payload
      started[at + 5] = planned or due or moment
      local deaths, doubts, counted = suspicion_of(id)
      if deaths + counted > 0 then
        local last = #suspected
        suspected[last + 1], suspected[last + 2], suspected[last + 3], suspected[last + 4] = id, deaths, doubts, counted
      end
    end
    return true
  end

  find_light(ids)
  local first_run = name_of_run(1, moment)
  -- Most jobs are light ones of which nothing else is to be asked: for them, this does what `hand_out` does. A job that
  -- BLMOVE moved may also wait.
  local is_plain = not (counting or suspecting or policy.batches)
  local first = is_plain and 1 or #ids + 1
  if is_plain and given > 0 and redis.call('EXISTS', backlog, throttled, ready) > 0 then
    first = given + 1
  end
  for i = 1, #ids do
    local id, mark, due, from = ids[i], nil, nil, nil
    local text = i >= first and light_jobs[id]
    if type(text) == 'string' and #text <= cap and #text <= room then
      mark, due, from = text:match('^%- %-+ (=?)(%S+) ()')
    end
    if due then
      local payload, last, begins = text:sub(from), #started, #light_begins
      started[last + 1], started[last + 2], started[last + 3] = id, first_run, due
      started[last + 4], started[last + 5] = payload, due
      light_begins[begins + 1], light_begins[begins + 2] = id, light_text(payload, mark .. due, moment, worker)
      room = room - #payload
    elseif not hand_out(id, i <= given) then
      -- The jobs that do not fit in the reply go back to the front of ready. Those in the rows stay in the worker's
      -- list.
      for at = #ids, math.max(i, given + 1), -1 do
        redis.call('LPUSH', ready, ids[at])
        redis.call('LREM', list, -1, ids[at])
      end
      hand_over(#ids - math.max(i, given + 1) + 1, now)
      break
    end
  end

  if #light_begins > 0 then
    redis.call('HSET', light, unpack(light_begins))
  end
  if freed then
    admit(0, now)
    write_history(now)
  end
end

local leased, size = redis.call('ZSCORE', leases, worker), redis.call('LLEN', list)
if size > 0 then
  -- A worker that holds nothing sends few heartbeats, and keeps its long lease.
  if not leased then
    redis.pcall('HSET', busy_leases, worker, lease) -- Redis has lost what the worker's heartbeats wrote
  end
  redis.call('ZADD', leases, seconds(ends), worker)
end
local left = redis.call('LLEN', ready) > 0
local waits = ticket ~= '' and not left and size < tonumber(hold)
if waits then
  -- A worker that got nothing keeps its place. One that holds jobs may be busy when the message comes.
  local place = size > 0 and seconds(now + LATER) or moment
  redis.call('ZADD', idle, type(since) == 'string' and not started[1] and since or place, worker)
  if ticket ~= '0' then
    redis.pcall('HSET', seats, worker, string.format('%s %s %.0f', ticket, lease, cap))
  else
    redis.pcall('HDEL', seats, worker)
  end
end
local reply = { moment, left and '1' or '0', waits and '1' or '0', leased and '1' or '0', size }
reply[6], reply[7], reply[8] = started, buried, suspected
return reply
