-- Workers that wait for jobs, and the hand-over of jobs to them.

-- Idle workers wait for a message instead of in BLMOVE. A BLMOVE occupies a connection and reads one list, so a worker
-- of many queues would need many connections. The messages of all queues of a server arrive on one connection.
--
-- idle   zset  worker -> since when it waits; a worker without jobs comes before one that holds some
-- seats  hash  worker in `idle` -> a ticket, the seconds of its lease while it holds jobs, and the bytes that a payload
--              may have. A worker without a seat only gets empty messages. Once a job was handed over: the ticket and
--              the job's id, until the worker's next question
--
-- `start` adds a worker in the same call in which it finds ready empty. The scripts that put a job into ready take out
-- the worker that has waited longest. If it has a seat, they hand the job over to it: they move the job into its list,
-- write what `start` would, and send it the job. An empty message asks it to call `start`. So one job wakes one worker.
local idle, seats = root .. 'idle', root .. 'seats'

-- Start the first job of ready for a worker, if that is all that `start` would do: `start` decides on every other job,
-- and reads large records. While a task is sought, jobs stay in ready until they are fetched, which wakes the parents
-- that stand by. The lease is set here too, so the worker counts at once as one that holds jobs. Returns the message:
-- the ticket, the time, '1' if ready holds more, and the job's id, attempt, due, planned and payload, a line each.
-- nil = `start` has to decide.
-- USES fields_of, moment_of, UNREAD, policy, suspects, counting, in_flight, attempt_of, processing, seconds,
--      record_key, light_of, light_jobs, light_text, recorded, light, is_bare, sought, seats
local function start_first(worker, ticket, lease, cap, now)
  local id = redis.call('LINDEX', ready, 0)
  if not id or id:find('\n', 1, true) or (not is_bare and redis.call('EXISTS', sought) == 1) then
    return nil
  end
  local key, job = record_key(id), light_of(id)
  local run = job and { job.payload, false, job.due, false, job.worker }
    or fields_of(key, 'payload', 'attempt', 'due', 'planned', 'worker', 'finished', 'stop', 'batch')
  local payload, due, planned = run[1] or '', moment_of(run[3]), moment_of(run[4])
  if payload == '' or payload == UNREAD or #payload > tonumber(cap) or not due or run[5] or run[6] or run[7] then
    return nil
  elseif (run[8] and policy.batches) or redis.pcall('HEXISTS', suspects, id) == 1 then
    return nil
  elseif counting and redis.call('HEXISTS', in_flight, id) == 0 then
    return nil
  end
  local attempts, moment = attempt_of(run[2]) + 1, seconds(now)
  if type(redis.pcall('LMOVE', ready, processing(worker), 'LEFT', 'RIGHT')) ~= 'string' then
    return nil -- the worker's list is of another type
  end
  if job then
    light_jobs[id] = light_text(payload, (recorded[id] and '=' or '') .. due, moment, worker)
    redis.call('HSET', light, id, light_jobs[id])
  else
    redis.call('HSET', key, 'attempt', attempts, 'worker', worker, 'started', moment)
  end
  redis.call('HSET', seats, worker, ticket .. ' ' .. id)
  redis.call('ZADD', leases, seconds(now + tonumber(lease)), worker)
  local more = redis.call('LLEN', ready) > 0 and '1' or '0'
  return table.concat({ ticket, moment, more, id, attempts, due, planned or due, payload }, '\n')
end

-- Hand over as many jobs as were put into ready, or send empty messages, while workers wait. If a worker has died, its
-- message would reach nobody, and the next one is served. The receivers are counted before a job moves, since Redis
-- does not undo that. pcall: a key of another type, or a user without the right, stops no job that others fetch.
-- USES idle, seats, start_first
local function hand_over(jobs, now)
  while jobs > 0 do
    local worker = redis.pcall('ZPOPMIN', idle)[1]
    if not worker then
      return
    end
    local channel, message = root .. 'idle:' .. worker, ''
    local seat = redis.pcall('HGET', seats, worker)
    local ticket, lease, cap = (type(seat) == 'string' and seat or ''):match('^(%d+) (%S+) (%d+)$')
    local receivers = 1
    if ticket then
      -- A lease that has ended is not begun again here: only a live worker's own call does that.
      local ends = redis.pcall('ZSCORE', leases, worker)
      local found = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)
      receivers = (type(ends) ~= 'string' or tonumber(ends) < now) and 0 or found[2] or receivers
      if receivers > 0 and not found.err then
        message = start_first(worker, ticket, lease, cap, now) or message
      end
      if message == '' then
        redis.call('HDEL', seats, worker)
      end
    end
    receivers = receivers > 0 and redis.pcall('SPUBLISH', channel, message)
    if type(receivers) == 'number' and receivers > 0 then
      jobs = jobs - 1
    end
  end
end

-- A worker stops waiting. Returns whether it waited. If it did not, it may have got an empty message of a job that it
-- does not take, so another worker is served. '': a worker did not come after its message. Others may hang too, so all
-- that wait are served.
-- USES idle, seats, hand_over, size_of
local function decline(worker, now)
  redis.pcall('HDEL', seats, worker)
  if redis.pcall('ZREM', idle, worker) == 1 then
    return true
  elseif size_of('LLEN', ready) > 0 then
    hand_over(worker == '' and size_of('ZCARD', idle) or 1, now)
  end
  return false
end
