-- Stands before every verb: the names of the places, the clock, refusal, and the ends of a job.
-- Behind it stand _limits.lua and _gate.lua, before every verb too.
-- One key is passed, the root of the queue's keys `evsched:{q}:`; all other names are made from it, and the
-- hash tag keeps them in one Redis Cluster slot.

local root = KEYS[1]
local schedule, backlog, ready = root .. 'schedule', root .. 'backlog', root .. 'ready'
local dead, leases = root .. 'dead', root .. 'leases'
local recurrences = root .. 'recurrences'

-- The dead set is bounded, so that a broken producer cannot fill Redis: the oldest beyond either bound go.
local DEAD_MOST = 100000
local DEAD_AGE = 180 * 86400
-- How long the record of a job is kept that ends without a worker to say how long, in seconds: a task's default.
local RETENTION = 300

local function record(id)
  return root .. 'job:' .. id
end

local function processing(worker)
  return root .. 'processing:' .. worker
end

local function recurrence(name)
  return root .. 'recurrence:' .. name
end

-- Numbers leave as text: tostring() keeps 14 digits, and a returned number loses its fraction.
local function seconds(number)
  return string.format('%.6f', number)
end

-- A length of time as PEXPIRE takes it. It refuses what does not fit 64 bits: 1e10 s, 317 years, does.
local function milliseconds(length)
  return string.format('%.0f', math.min(length, 1e10) * 1000)
end

-- '' is Redis's own clock, read once per script; a number is a test's.
local function clock(now)
  if now ~= '' then
    return tonumber(now)
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

-- A field of a job's record, nil when it is absent or the record is not a hash.
local function field_of(id, field)
  local value = redis.pcall('HGET', record(id), field)
  return type(value) == 'string' and value or nil
end

-- A refusal. INFO errorstats counts it under its code.
local function fail(code, text)
  return redis.error_reply(code .. ' ' .. text)
end

-- Walk ARGV from `first` on, in rows of `width` values.
local function rows(first, width)
  local at = first - width
  return function()
    at = at + width
    if ARGV[at] then
      return unpack(ARGV, at, at + width - 1)
    end
  end
end

-- Write what a client says of a job; '' is not said.
local function write_record(id, payload, priority, group)
  local fields = { 'payload', payload }
  if priority ~= '' then
    fields[#fields + 1] = 'priority'
    fields[#fields + 1] = priority
  end
  if group ~= '' then
    fields[#fields + 1] = 'group'
    fields[#fields + 1] = group
  end
  redis.call('HSET', record(id), unpack(fields))
end

-- Tell who waits how the job ended. `result` is JSON text. The list lives as long as the record would, and at
-- least 10 s, so that a waiter that comes late or reconnects still finds it.
local function answer(id, outcome, result, reason, retention)
  local text = '{"id":"' .. id .. '","outcome":"' .. outcome .. '","result":' .. result
  if reason then
    text = text .. ',"reason":' .. cjson.encode(reason)
  end
  local reply = root .. 'reply:' .. id
  -- A key of another type in its place: nobody can wait on it, and the job must end all the same.
  if type(redis.pcall('RPUSH', reply, text .. '}')) == 'number' then
    redis.call('PEXPIRE', reply, milliseconds(math.max(retention, 10)))
  end
end

-- An occurrence of a recurrence is out of the way: let the one go that waits for its end.
local function release(name)
  local waiting = redis.call('HGET', recurrence(name), 'waiting')
  local planned = waiting and redis.call('HGET', record(waiting), 'planned')
  if planned then
    redis.call('ZADD', schedule, 'XX', planned, waiting)
  end
end

-- A job has ended for good, by whatever verb. If it is an occurrence, its recurrence counts it.
local function note_end(id, outcome, now)
  local run = redis.call('HMGET', record(id), 'recurrence', 'due', 'started')
  local name, due, started = run[1], tonumber(run[2]), tonumber(run[3])
  local key = recurrence(name or '')
  if not name or redis.call('EXISTS', key) == 0 then
    return
  end
  redis.call('HINCRBY', key, 'runs', 1)
  redis.call('HSET', key, 'last_id', id, 'last_outcome', outcome, 'last_finished', seconds(now))
  if due and started then
    redis.call('HSET', key, 'last_lateness', seconds(started - due))
  end
  release(name)
end

-- Put a job into the dead set; `outcome` is 'dead' or 'expired'. The caller takes it out of the place where it was,
-- afterwards.
local function entomb(id, outcome, reason, now)
  note_end(id, outcome, now)
  redis.call('HSET', record(id), 'outcome', outcome, 'reason', reason, 'finished', seconds(now))
  redis.call('PERSIST', record(id))
  redis.call('ZADD', dead, seconds(now), id)
  local oldest = redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')
  if redis.call('ZCARD', dead) > DEAD_MOST or tonumber(oldest[2]) < now - DEAD_AGE then
    if not redis.call('ZSCORE', schedule, oldest[1]) then
      redis.call('DEL', record(oldest[1]))
    end
    redis.call('ZREM', dead, oldest[1])
  end
end

-- The dead jobs that revive and drop are to move: those in the rows from `first` on, or without rows the oldest that
-- died up to `before` ('' = no bound). On a row that is not dead: nil, and the refusal.
local function pick_dead(first, before, limit)
  local ids = {}
  for id in rows(first, 1) do
    if not redis.call('ZSCORE', dead, id) then
      return nil, fail('MISSING', id .. ' is not dead')
    end
    ids[#ids + 1] = id
  end
  if #ids == 0 then
    ids = redis.call('ZRANGE', dead, '-inf', before == '' and '+inf' or before, 'BYSCORE', 'LIMIT', 0, limit)
  end
  return ids
end

-- Does run (id, attempt) belong to this worker, by its record? A record that somebody overwrote (pcall) says no,
-- and keeps no other run of the batch from its end.
local function runs(worker, id, attempt)
  local run = redis.pcall('HMGET', record(id), 'worker', 'attempt', 'finished')
  return run[1] == worker and run[2] == attempt and not run[3]
end

-- Take what is of a job that has ended, and of its runs, out of its record: the id is used again.
local function clear_ended(id)
  redis.call('HDEL', record(id), 'outcome', 'result', 'reason', 'finished', 'attempt', 'worker', 'started')
  redis.call('HDEL', record(id), 'reply', 'stop', 'progress', 'awaited', 'planned')
end

-- The run has ended, and its id was scheduled again meanwhile: make the record that of the next run. `again` is
-- the due of one that was dispatched during the run.
local function renew(id, again)
  redis.call('HDEL', record(id), 'worker', 'attempt', 'started', 'again', 'reply', 'stop', 'progress', 'planned')
  if again then
    redis.call('ZADD', schedule, 'LT', again, id)
  end
end

-- A job that was to stop has ended: cancelled. Its record is kept, or is the next run's when its id was scheduled
-- again. The caller takes it out of the place where it was, afterwards.
local function abort(id, reason, retention, reply, now)
  note_end(id, 'cancelled', now)
  local extra = redis.call('HMGET', record(id), 'reply', 'again')
  if reply == '1' or extra[1] then
    answer(id, 'cancelled', 'null', reason, retention)
  end
  if extra[2] or redis.call('ZSCORE', schedule, id) then
    renew(id, extra[2])
  else
    redis.call('HSET', record(id), 'outcome', 'cancelled', 'reason', reason, 'finished', seconds(now))
    redis.call('PEXPIRE', record(id), milliseconds(retention))
  end
end

-- The worker that holds the job in its list, or nil. One that took it and has not started it yet is not named in the
-- record: then all lists are looked at, O(workers).
local function holder_of(id, named)
  if named and redis.call('LPOS', processing(named), id) then
    return named
  end
  for _, worker in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    if worker ~= named and redis.call('LPOS', processing(worker), id) then
      return worker
    end
  end
end
