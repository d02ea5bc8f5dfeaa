-- The gate: the one way from the backlog to ready. Stands behind the prelude and the limits, before every verb.
--
-- backlog          zset  id -> order: who may pass next
-- backlog:<group>  zset  the same, for what the group's own limits hold back: it must not stand in others' way
-- fair             hash  fair queueing, only while jobs wait: passed:<p> = V of priority p; last:<p>:<group>
--
-- Whoever frees room or adds jobs calls `admit`: nothing polls. Only a rate opens by itself, at a moment that the
-- dispatcher's sleep knows.

local fair = root .. 'fair'

-- How many jobs lie in ready beyond what is asked for: enough that workers which block on it never wait for a
-- dispatcher, short enough that a later job of a higher priority is not stuck behind it.
local READY_AHEAD = 16
-- Backlog scores: -priority * STRIDE + v. Ten priorities of 1e12 stay exact in a double (below 2^53).
local STRIDE = 1e12
-- How long what a key of the wrong type stops is left alone, in seconds.
local UNFIT = 1
-- How many jobs one call looks at, and how many groups it opens again.
local LOOKS = 1000
local REOPENED = 20
-- Beyond so many fields the state of the fair queueing is swept: groups that have had their turn say nothing.
local ORDER_MOST = 10000

local function group_backlog(group)
  return backlog .. ':' .. group
end

-- Refuse what the gate cannot work with, before the verb has written anything. A group's own keys are not looked at:
-- they cost the group.
local function expect_gate()
  expect('ZCARD', schedule, backlog, throttled)
  expect('LLEN', ready)
  expect('HLEN', fair)
end

-- The group in whose backlog the job waits, and its order there; nil when it is in none.
local function aside_in(id)
  local group = group_of(field_of(id, 'parked'))
  local score = group and redis.pcall('ZSCORE', group_backlog(group), id)
  if type(score) == 'string' then
    return group, score
  end
end

-- The group's entry in `throttled` goes with its last job, and the fair queueing's state with the last of all.
local function tidy(group)
  if group and redis.call('EXISTS', group_backlog(group)) == 0 then
    redis.call('ZREM', throttled, group)
  end
  if redis.call('EXISTS', backlog, throttled) == 0 then
    redis.call('DEL', fair)
  end
end

-- Put back into the backlog what groups may let pass again. Returns how many groups were looked at.
local function reopen(most, now)
  -- Limits that are gone close nothing.
  local last = policy.grouped and seconds(now) or '+inf'
  local groups = redis.call('ZRANGE', throttled, '-inf', last, 'BYSCORE', 'LIMIT', 0, REOPENED)
  for _, group in ipairs(groups) do
    local rule = rule_of(group, now)
    local count = math.max(0, math.min(rule.room, most))
    -- A group without room waits for its rate, or for the end of one of its jobs.
    local again = rule.opens or (rule.room < 1 and '+inf') or (rule.arrival and now + PACKET) or 0
    if type(redis.pcall('ZCARD', group_backlog(group))) == 'table' then
      again = now + UNFIT -- a key of another type costs this group alone
    elseif count > 0 then
      local front = redis.call('ZRANGE', group_backlog(group), 0, count - 1, 'WITHSCORES')
      for i = 1, #front, 2 do
        redis.call('ZADD', backlog, front[i + 1], front[i])
        redis.pcall('HDEL', record(front[i]), 'parked') -- pcall: start judges a wrong type
      end
      redis.call('ZREMRANGEBYRANK', group_backlog(group), 0, count - 1)
    end
    redis.call('ZADD', throttled, again, group)
    tidy(group)
  end
  return #groups
end

-- V of a priority, by the last of it that passed (self-clocked fair queueing, Golestani 1994). It never falls: what a
-- group's own limit held back does not set the others back.
local function note_passed(priority, v)
  local field = string.format('passed:%d', priority)
  if v > tonumber(redis.call('HGET', fair, field) or 0) then
    redis.call('HSET', fair, field, v)
  end
end

-- Let the front of the backlog pass, at most `room`; set aside what its group holds back. Returns how many passed, and
-- how many were looked at.
local function pass(room, now)
  local front =
    redis.call('ZRANGE', backlog, 0, math.min(policy.grouped and room + 32 or room, LOOKS) - 1, 'WITHSCORES')
  local looked, ids, spent, reached = 0, {}, {}, {}
  for i = 1, #front, 2 do
    if #ids == room then
      break
    end
    looked = looked + 1
    local id = front[i]
    local group = counting and group_of(field_of(id, 'group')) or ''
    local rule = policy.grouped and group ~= '' and rule_of(group, now)
    if rule and rule.room < 1 then
      if spent[rule] then -- it closes just now: until when?
        spend_rule(rule, spent[rule], now)
        spent[rule] = nil
      end
      if type(redis.pcall('ZADD', group_backlog(group), front[i + 1], id)) == 'number' then
        redis.pcall('HSET', record(id), 'parked', group)
        redis.call('ZADD', throttled, 'NX', rule.opens or '+inf', group)
      else -- a key of another type is there: what it should hold waits where it stands in nobody's way
        redis.call('ZADD', schedule, seconds(now + UNFIT), id)
      end
    else
      ids[#ids + 1] = id
      local score = tonumber(front[i + 1])
      reached[-math.floor(score / STRIDE)] = score % STRIDE
      if rule then
        rule.room = rule.room - 1
        if rule.arrival then
          spent[rule] = (spent[rule] or 0) + 1
        end
      end
      if counting then
        enter(id, group)
      end
    end
  end
  for rule, count in pairs(spent) do
    spend_rule(rule, count, now)
  end
  if looked == 0 then
    return 0, 0
  end
  if #ids > 0 then
    redis.call('RPUSH', ready, unpack(ids))
  end
  redis.call('ZREMRANGEBYRANK', backlog, 0, looked - 1)
  if redis.call('EXISTS', backlog, throttled) == 0 then
    redis.call('DEL', fair)
  else
    for priority, v in pairs(reached) do
      note_passed(priority, v)
    end
  end
  return #ids, looked
end

-- Open the gate as far as the limits let it. `asked` is how many the caller takes in this same script. Returns when to
-- look again, if that is a moment that nobody's verb will bring: a rate opens, or there is more to look at than one
-- call may; and whether anything has changed.
local function open(asked, now)
  keep_count()
  if policy.paused then
    return nil
  end
  local room = READY_AHEAD + asked - redis.call('LLEN', ready)
  if policy.concurrency then
    room = math.min(room, math.floor(policy.concurrency) - redis.call('HGET', in_flight, '*'))
  end
  local rate = (policy.rate or 0) > RATE_LEAST and policy.rate
  local arrival = root .. 'arrival'
  if rate then
    room = math.min(room, (tokens(arrival, rate, policy.burst, now)))
  end
  local aside = policy.grouped or redis.call('EXISTS', throttled) == 1
  local passed, looked, reopened = 0, 0, 0
  if room > 0 then
    if aside then
      reopened = reopen(room, now)
    end
    repeat
      local went, saw = pass(room - passed, now)
      passed, looked = passed + went, looked + saw
    until saw == 0 or passed >= room or looked >= LOOKS
  end
  local again
  if aside then
    local after = '(' .. seconds(now)
    local nearest = redis.call('ZRANGE', throttled, after, '(+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    again = tonumber(nearest[2])
  end
  if rate then
    if passed > 0 then
      spend(arrival, rate, policy.burst, passed, now)
    end
    if redis.call('EXISTS', backlog, throttled) > 0 then
      local _, opens = tokens(arrival, rate, policy.burst, now)
      again = opens and math.min(opens, again or opens) or again
    end
  end
  if passed < room and (looked >= LOOKS or reopened >= REOPENED) then
    again = now
  end
  return again, looked + reopened > 0
end

-- The gate, for every verb but dispatch: dispatchers sleep until the next rate opens, so they are told of a new one.
local function admit(asked, now)
  local again, changed = open(asked, now)
  if again and changed then
    redis.call('PUBLISH', root .. 'gate', seconds(again))
  end
end

-- Where a job waits that is due: 'backlog', 'ready' or nil.
local function waiting_place(id)
  if redis.call('ZSCORE', backlog, id) or aside_in(id) then
    return 'backlog'
  end
  return redis.call('LPOS', ready, id) and 'ready' or nil
end

-- Take a job that is due out of the line; return where it was, or nil.
local function remove_waiting(id)
  if field_of(id, 'parked') then
    local group = aside_in(id)
    redis.call('HDEL', record(id), 'parked')
    if group then
      redis.call('ZREM', group_backlog(group), id)
      tidy(group)
      return 'backlog'
    end
  end
  if redis.call('ZREM', backlog, id) == 1 then
    tidy()
    return 'backlog'
  end
  if redis.call('LREM', ready, 1, id) == 1 then
    leave(id)
    return 'ready'
  end
end

-- Jobs that had passed wait again, before all others of their priority and in their order: the gate has closed.
local function step_back(ids)
  for i, id in ipairs(ids) do
    local priority = priority_of(field_of(id, 'priority')) or 5
    redis.call('ZADD', backlog, 'NX', -priority * STRIDE + i / (#ids + 1), id)
    leave(id)
  end
end

-- From a worker's list back to the schedule; true when it went there. A job that was to stop ends as cancelled instead.
-- When its id was scheduled again meanwhile, that time is kept for a run after this one ends.
local function send_back(list, id, due, reason, now)
  local key = record(id)
  local stops = redis.call('HEXISTS', key, 'stop') == 1
  if stops then
    abort(id, reason, RETENTION, '', now)
  else
    local again = redis.call('ZSCORE', schedule, id)
    if again then
      redis.call('HSET', key, 'again', again)
    end
    redis.call('ZADD', schedule, due, id)
    redis.call('HSET', key, 'reason', reason)
    -- What the attempts of a job have in common, for its idempotency key.
    redis.call('HSETNX', key, 'planned', moment_of(redis.call('HGET', key, 'due')) or '0')
    redis.call('HDEL', key, 'worker', 'begun', 'traceback')
  end
  redis.call('LREM', list, 1, id)
  leave(id)
  return not stops
end

-- Where a job is, and its score there; nil when there is none. A run comes before the schedule: an id that runs may be
-- scheduled again already. `worker` and `finished` are of its record.
local function place_of(id, worker, finished)
  if holds(worker_of(worker), id) then
    return 'processing'
  end
  for place, zset in pairs({ schedule = schedule, dead = dead }) do
    local score = redis.call('ZSCORE', zset, id)
    if score then
      return place, score
    end
  end
  local place = waiting_place(id)
  if place == 'backlog' then
    local _, score = aside_in(id)
    return place, score or redis.call('ZSCORE', backlog, id)
  end
  -- A worker took it and has not counted the attempt yet.
  return place or (finished and 'finished') or (holder_of(id, worker) and 'processing')
end
