-- Stands before every verb: the names of the places, the clock, refusal, and the gate.
-- One key is passed, the root of the queue's keys `evsched:{q}:`; all other names are made from it, and the
-- hash tag keeps them in one Redis Cluster slot.

local root = KEYS[1]
local schedule, backlog, ready = root .. 'schedule', root .. 'backlog', root .. 'ready'
local dead, leases = root .. 'dead', root .. 'leases'
local order = root .. 'order' -- hash: the fair queueing's state, only while the backlog holds jobs

-- How many jobs lie in ready beyond what is asked for: enough that workers which block on it never wait for a
-- dispatcher, short enough that a later job of a higher priority is not stuck behind it.
local READY_AHEAD = 16
-- The dead set is bounded, so that a broken producer cannot fill Redis: the oldest beyond either bound go.
local DEAD_MOST = 100000
local DEAD_AGE = 180 * 86400
-- Backlog scores: -priority * STRIDE + v. Ten priorities of 1e12 stay exact in a double (below 2^53).
local STRIDE = 1e12

local function record(id)
  return root .. 'job:' .. id
end

local function processing(worker)
  return root .. 'processing:' .. worker
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

-- Put a job into the dead set. The caller takes it out of the place where it was, afterwards.
local function entomb(id, reason, now)
  redis.call('HSET', record(id), 'outcome', 'dead', 'reason', reason, 'finished', seconds(now))
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

-- The run has ended, and its id was scheduled again meanwhile: make the record that of the next run. `again` is
-- the due of one that was dispatched during the run.
local function renew(id, again)
  redis.call('HDEL', record(id), 'worker', 'attempt', 'started', 'again', 'reply')
  if again then
    redis.call('ZADD', schedule, 'LT', again, id)
  end
end

-- The gate: the one way from the backlog to ready. `asked` is how many the caller takes in this same script.
-- V, in `order`, is the v of the last job that passed (self-clocked fair queueing, Golestani 1994).
local function admit(asked)
  local room = READY_AHEAD + asked - redis.call('LLEN', ready)
  if room <= 0 then
    return
  end
  local front = redis.call('ZRANGE', backlog, 0, room - 1, 'WITHSCORES')
  if #front == 0 then
    return
  end
  local ids = {}
  for i = 1, #front, 2 do
    ids[#ids + 1] = front[i]
  end
  redis.call('RPUSH', ready, unpack(ids))
  redis.call('ZREMRANGEBYRANK', backlog, 0, #ids - 1)
  if redis.call('EXISTS', backlog) == 0 then
    redis.call('DEL', order)
  else
    redis.call('HSET', order, 'passed', tonumber(front[#front]) % STRIDE)
  end
end
