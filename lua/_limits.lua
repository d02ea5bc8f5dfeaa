-- The limits that operators set, and the counts and times that enforce them.
--
-- limits     hash  concurrency, rate, burst, paused; with `:<group>` behind the name those of a group; weight:<group>
-- in_flight  hash  the jobs that have passed the gate and not ended, only while a limit needs them: id -> group;
--                  `*` -> how many; `#<group>` -> how many of a group
-- throttled  zset  the groups whose own limits hold jobs back -> when to look at them again
-- arrival    string  the state of the rate (GCRA); with `:<group>` behind the name that of a group's rate

local limits, in_flight, throttled = root .. 'limits', root .. 'in_flight', root .. 'throttled'

-- A rate is handed out in packets of so many seconds' worth: one script call and one wake-up serve a packet.
local PACKET = 0.05
-- Without `burst`, so many seconds' worth may pass at once after a silence.
local BURST = 0.1
-- A lower rate than this, once in 11 days, means no rate.
local RATE_LEAST = 1e-6

-- A limit as a number. A malformed value, written by hand and not by `limit`, means no limit.
local function limit_of(text)
  local number = tonumber(text)
  return number and number >= 0 and number < 1e12 and number or nil
end

-- The limits that are set. This read refuses a key of the wrong type before the verb has written anything.
-- USES limits, limit_of
local policy
local function read_policy()
  policy = {}
  local ruled = redis.call('HLEN', limits)
  if ruled > 0 then
    local fields = redis.call('HMGET', limits, 'paused', 'concurrency', 'rate', 'burst')
    policy.paused = fields[1]
    policy.concurrency, policy.rate, policy.burst = limit_of(fields[2]), limit_of(fields[3]), limit_of(fields[4])
    for i = 1, 4 do
      ruled = ruled - (fields[i] and 1 or 0)
    end
    policy.grouped = ruled > 0
  end
end
read_policy()

-- This read refuses a key of the wrong type as well.
-- USES in_flight
local counting = redis.call('HLEN', in_flight) > 0

-- Count a job that passes.
-- USES in_flight
local function enter(id, group)
  if redis.call('HSETNX', in_flight, id, group) == 1 then
    redis.call('HINCRBY', in_flight, '*', 1)
    redis.call('HINCRBY', in_flight, '#' .. group, 1)
  end
end

-- A job is in flight no more: it ended, waits for another attempt, or was taken away.
-- USES counting, in_flight, throttled
local function leave(id)
  local group = counting and redis.call('HGET', in_flight, id)
  if group then
    redis.call('HDEL', in_flight, id)
    redis.call('HINCRBY', in_flight, '*', -1)
    if redis.call('HINCRBY', in_flight, '#' .. group, -1) == 0 then
      redis.call('HDEL', in_flight, '#' .. group)
    end
    redis.call('ZADD', throttled, 'XX', 0, group) -- its gate may be open now
  end
end

-- Count only while a limit needs it. To begin is O(n) in ready and in the workers' lists, once, when one is first set.
-- USES policy, counting, in_flight, processing, enter, group_of, field_of
local function keep_count()
  local needed = policy.concurrency or policy.grouped
  if counting and not needed then
    redis.call('DEL', in_flight)
  elseif needed and not counting then
    redis.call('HSET', in_flight, '*', 0)
    local lists = { ready }
    for _, worker in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
      lists[#lists + 1] = processing(worker)
    end
    for _, list in ipairs(lists) do
      local ids = redis.pcall('LRANGE', list, 0, -1)
      for _, id in ipairs(ids) do
        enter(id, group_of(field_of(id, 'group')) or '')
      end
    end
  end
  counting = needed
end

-- The theoretical arrival time of the cell rate algorithm: when the next job would come if all came at the rate. It may
-- be ahead of now by up to a burst. A time further ahead was written under another rate, or by a clock that has been
-- set back since, and is ignored.
local function arrival_of(key, rate, most, now)
  local text = redis.pcall('GET', key) -- of another type, it is replaced when the next job passes
  local tat = type(text) == 'string' and tonumber(text) or 0
  return tat > now and tat <= now + most / rate + 1 and tat or now
end

-- How many jobs may pass at once at most, and how many are in a packet.
-- USES BURST, PACKET
local function sizes(rate, burst)
  local most = math.max(1, burst or rate * BURST)
  return most, math.max(1, math.floor(math.min(most, rate * PACKET)))
end

-- How many jobs a rate lets pass now; and if none, the moment at which it lets a packet pass. The generic cell rate
-- algorithm (ITU-T I.371). Moments are kept in microseconds, and two of those are tolerated, so that rounding never
-- turns a whole job into less than one.
-- USES sizes, arrival_of
local function tokens(key, rate, burst, now)
  local most, packet = sizes(rate, burst)
  local tat = arrival_of(key, rate, most, now)
  local free = math.floor(most - (tat - now) * rate + 2e-6 * rate + 1e-9)
  if free >= packet then
    return free
  end
  return 0, tat - (most - packet) / rate
end

-- USES arrival_of, sizes, seconds, milliseconds
local function spend(key, rate, burst, count, now)
  local tat = arrival_of(key, rate, (sizes(rate, burst)), now) + count / rate
  -- A moment that has passed means the same as no key.
  redis.call('SET', key, seconds(tat), 'PX', milliseconds(tat - now + 60))
end

-- What a group's own limits allow: `room`, how many jobs, and `opens`, when its rate opens if that leaves no room.
-- USES limits, limit_of, in_flight, RATE_LEAST, tokens
local rules = {}
local function rule_of(group, now)
  local rule = rules[group]
  if not rule then
    local fields = redis.call('HMGET', limits, 'concurrency:' .. group, 'rate:' .. group, 'burst:' .. group)
    local most = limit_of(fields[1])
    rule = { room = math.huge, rate = limit_of(fields[2]), burst = limit_of(fields[3]) }
    if most then
      rule.room = math.floor(most) - (redis.call('HGET', in_flight, '#' .. group) or 0)
    end
    if (rule.rate or 0) > RATE_LEAST then
      rule.arrival = root .. 'arrival:' .. group
      local free
      free, rule.opens = tokens(rule.arrival, rule.rate, rule.burst, now)
      rule.room = math.min(rule.room, free)
    end
    rules[group] = rule
  end
  return rule
end

-- So many jobs of a group have passed: take them off its rate.
-- USES spend, tokens
local function spend_rule(rule, count, now)
  spend(rule.arrival, rule.rate, rule.burst, count, now)
  if rule.room < 1 then
    local _, opens = tokens(rule.arrival, rule.rate, rule.burst, now)
    rule.opens = opens
  end
end
