-- The limits of a queue, and the times that enforce its rates. `_in_flight.lua` has the counts.
--
-- limits     hash  concurrency, rate, burst; paused, paused_until and paused_why: since when, when the pause ends by
--                  itself, and why; with `:<group>` behind the name those of a group, with `:*` those
--                  of each group that has none of its own; weight:<group>; tasks, the names of the tasks that have a
--                  concurrency or a rate, with a `}` between them; origins, if origins have one
--                  `reserved`, of a new shard: JSON, field -> [how much of this limit is not to be used yet, because
--                  jobs that run in older parts of the queue use it; the limit of the whole queue]
-- declared_limits  hash  the limits that apps declare in their code, by the same fields: the value, a space, the app;
--                  in a shard, also a space and the limit of the whole queue. A limit was changed by hand if `limits`
--                  has another value
-- throttled  zset  the groups whose own limits hold jobs back -> when to look at them again
-- arrival    string  the state of the rate (GCRA); with `:<group>` behind the name that of a group's rate

local limits, throttled = root .. 'limits', root .. 'throttled'
local declared_limits = root .. 'declared_limits'

-- Seconds of a rate that are handed out as one packet: one script call and one wake-up serve a packet.
local PACKET = 0.05
-- Seconds of a rate that may pass at once after a silence, if there is no `burst`.
local BURST = 0.1
-- A lower rate than this, once in 11 days, means no rate.
local RATE_LEAST = 1e-6
-- The group of occurrences whose recurrence names none.
local RECURRING = '@recurring'
-- The limits of a task are those of the group with this before its name. All its jobs belong to that group, besides
-- their own.
local TASK_GROUP = 'task:'
-- The limits of an origin, where a job sends its request or message, are those of the group with this before its name.
-- All jobs for that origin belong to it, besides their other groups. With `*` for the name: each that has none.
local ORIGIN_GROUP = 'origin:'
-- The tasks whose jobs have an origin, as payloads name them, and the argument that says it.
local ORIGIN_IN = { ['evsched.http'] = 'url', ['evsched.forward'] = 'to' }

-- A limit as a number. A malformed value, written by hand and not by `limit`, means no limit.
local function limit_of(text)
  local number = tonumber(text)
  return number and number >= 0 and number < 1e12 and number or nil
end

-- The limits that are set. This read refuses a key of the wrong type before the verb has written anything.
-- `reserved_of`: how much of a concurrency older parts of the queue still use.
-- USES limits, limit_of, ORIGIN_IN, moment_of
local policy
local function reserved_of(field)
  local found = policy.reserved and policy.reserved[field]
  return type(found) == 'table' and limit_of(found[1]) or 0
end
local function read_policy()
  policy = {}
  local ruled = redis.call('HLEN', limits)
  if ruled > 0 then
    local whole = { 'paused', 'concurrency', 'rate', 'burst', 'paused_until', 'paused_why', 'reserved' }
    local fields = redis.call('HMGET', limits, 'concurrency:*', 'rate:*', 'burst:*', 'tasks', 'origins', unpack(whole))
    policy.paused, policy.paused_until = fields[6], moment_of(fields[10] or nil)
    policy.concurrency, policy.rate, policy.burst = limit_of(fields[7]), limit_of(fields[8]), limit_of(fields[9])
    policy.each_group = { unpack(fields, 1, 3) }
    -- The tasks for whose jobs the payload must be read, and how it names them.
    policy.tasks, policy.origins, policy.named = {}, fields[5], (fields[4] or fields[5]) and {}
    for task in (fields[4] or ''):gmatch('[^}]+') do
      policy.tasks[task] = true
      policy.named[task] = '"' .. task .. '"'
    end
    for task in pairs(policy.origins and ORIGIN_IN or {}) do
      policy.named[task] = '"' .. task .. '"'
    end
    for i = 6, 12 do
      ruled = ruled - (fields[i] and 1 or 0)
    end
    if fields[12] then
      local good, reserved = pcall(cjson.decode, fields[12])
      policy.reserved = good and type(reserved) == 'table' and reserved or {}
      policy.concurrency = policy.concurrency and math.max(0, policy.concurrency - reserved_of('concurrency'))
    end
    policy.grouped = ruled > 0
  end
end
read_policy()

-- Is the queue paused? A pause that has an end is over then, also if no script has run since.
-- USES policy
local function is_paused(now)
  return policy.paused and now < tonumber(policy.paused_until or math.huge)
end

-- USES limits, policy
local function end_queue_pause()
  redis.call('HDEL', limits, 'paused', 'paused_until', 'paused_why')
  policy.paused = nil
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
  local tat = math.max(now, arrival_of(key, rate, (sizes(rate, burst)), now) + count / rate)
  -- A moment that has passed means the same as no key.
  redis.call('SET', key, seconds(tat), 'PX', milliseconds(tat - now + 60))
end

-- The concurrency, rate and burst of a group, as numbers or nil. A burst belongs to the rate that is set with it. The
-- groups that evsched itself makes do not have those of each group.
-- USES limits, policy, limit_of, reserved_of, RECURRING, TASK_GROUP, ORIGIN_GROUP
local function limits_of(group)
  local own = redis.call('HMGET', limits, 'concurrency:' .. group, 'rate:' .. group, 'burst:' .. group)
  local each, all = policy.each_group or {}, '*'
  if group:sub(1, #ORIGIN_GROUP) == ORIGIN_GROUP then
    all = ORIGIN_GROUP .. '*'
    each = redis.call('HMGET', limits, 'concurrency:' .. all, 'rate:' .. all, 'burst:' .. all)
  elseif group == RECURRING or group:sub(1, #TASK_GROUP) == TASK_GROUP then
    each = {}
  end
  local rate = own[2] and own or { false, each[2], own[3] or each[3] }
  local most = limit_of(own[1] or each[1])
  most = most and math.max(0, most - reserved_of('concurrency:' .. (own[1] and group or all)))
  return most, limit_of(rate[2]), limit_of(rate[3])
end

-- The room that a group's own limits leave: `room`, how many jobs, and `opens`, when its rate opens if there is none.
-- USES limits_of, in_flight, RATE_LEAST, tokens
local rules = {}
local function rule_of(group, now)
  local rule = rules[group]
  if not rule then
    local most, rate, burst = limits_of(group)
    rule = { room = math.huge, rate = rate, burst = burst }
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

-- Take jobs of a group that have passed off its rate.
-- USES spend, tokens
local function spend_rule(rule, count, now)
  spend(rule.arrival, rule.rate, rule.burst, count, now)
  if rule.room < 1 then
    local _, opens = tokens(rule.arrival, rule.rate, rule.burst, now)
    rule.opens = opens
  end
end

-- A job that has passed does not begin, and will pass again: undo its part in the rates.
-- USES policy, RATE_LEAST, spend, groups_of, split_groups, rule_of, rules
local function refund(id, now)
  if (policy.rate or 0) > RATE_LEAST then
    spend(root .. 'arrival', policy.rate, policy.burst, -1, now)
  end
  local groups = policy.grouped and groups_of(id) or ''
  for _, group in ipairs(groups ~= '' and { split_groups(groups) } or {}) do
    local rule = rule_of(group, now)
    if rule.arrival then
      spend(rule.arrival, rule.rate, rule.burst, -1, now)
    end
    rules[group] = nil -- it has more room now
  end
end
