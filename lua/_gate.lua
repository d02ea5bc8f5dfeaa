-- The gate: the one way from the backlog to ready.
--
-- backlog          zset  id -> order: the jobs that may pass next
-- backlog:<group>  zset  the same for the jobs that a group's own limits hold back, out of the others' way
--
-- Every script that frees room or adds jobs calls `admit`, or in `dispatch` `open`, so nothing polls. Only a rate, and
-- the end of a pause, open it by themselves, at a moment that the dispatcher knows.

-- How many jobs wait in ready beyond what is asked for: enough that workers blocked on it never wait for a dispatcher,
-- few enough that a later job of a higher priority does not wait behind them.
local READY_AHEAD = 16
-- The jobs of a group cannot pass while the key of its backlog has the wrong type. Seconds until they are tried again.
local UNFIT = 1
-- How many jobs one call looks at, how many groups it reopens, and how many bytes of payloads it reads to learn tasks.
local LOOKS = 1000
local REOPENED = 20
local PAYLOADS_MOST = 1048576

-- Refuse wrong types of the gate's keys, before the verb has written anything. A group's own keys are not looked at:
-- their wrong type stops the jobs of that group alone.
-- USES expect, throttled, fair
local function expect_gate()
  expect('ZCARD', schedule, backlog, throttled)
  expect('LLEN', ready)
  expect('HLEN', fair)
end

-- Return jobs that the limits of their groups held back to the backlog, as many as those limits now permit. Returns how
-- many groups were looked at.
-- USES policy, seconds, throttled, REOPENED, rule_of, PACKET, group_backlog, UNFIT, record, tidy
local function reopen(most, now)
  -- Without limits of groups, every group that was held back may pass.
  local last = policy.grouped and seconds(now) or '+inf'
  local groups = redis.call('ZRANGE', throttled, '-inf', last, 'BYSCORE', 'LIMIT', 0, REOPENED)
  for _, group in ipairs(groups) do
    local rule = rule_of(group, now)
    local count = math.max(0, math.min(rule.room, most))
    -- A group without room waits for its rate, or for the end of one of its jobs.
    local again = rule.opens or (rule.room < 1 and '+inf') or (rule.arrival and now + PACKET) or 0
    if type(redis.pcall('ZCARD', group_backlog(group))) == 'table' then
      again = now + UNFIT -- a key of another type stops this group alone
    elseif count > 0 then
      local front = redis.call('ZRANGE', group_backlog(group), 0, count - 1, 'WITHSCORES')
      for i = 1, #front, 2 do
        redis.call('ZADD', backlog, front[i + 1], front[i])
        redis.pcall('HDEL', record(front[i]), 'parked') -- pcall: start checks the record's type
      end
      redis.call('ZREMRANGEBYRANK', group_backlog(group), 0, count - 1)
    end
    redis.call('ZADD', throttled, again, group)
    tidy(group)
  end
  return #groups
end

-- Move a job that its group's limits hold back into the group's backlog.
-- USES group_backlog, record, throttled, seconds, UNFIT
local function hold_back(id, score, group, opens, now)
  if type(redis.pcall('ZADD', group_backlog(group), score, id)) == 'number' then
    redis.pcall('HSET', record(id), 'parked', group)
    redis.call('ZADD', throttled, 'NX', opens or '+inf', group)
  else -- that key is of another type: the job waits on the schedule, where it stops no other
    redis.call('ZADD', schedule, seconds(now + UNFIT), id)
  end
end

-- The first of a job's groups that has no room; nil if it may pass.
-- USES split_groups, rule_of
local function closed_group(groups, now)
  for _, group in ipairs({ split_groups(groups) }) do
    if rule_of(group, now).room < 1 then
      return group
    end
  end
end

-- Take the room of one job from each of its groups. `spent`: rule -> how many jobs to take off its rate.
-- USES split_groups, rule_of
local function take_room(groups, spent, now)
  for _, group in ipairs({ split_groups(groups) }) do
    local rule = rule_of(group, now)
    rule.room = rule.room - 1
    if rule.arrival then
      spent[rule] = (spent[rule] or 0) + 1
    end
  end
end

-- Let the front of the backlog pass, at most `room` jobs, and hold back those whose groups have reached a limit.
-- Returns how many passed, and how many were looked at.
-- USES policy, LOOKS, payloads_read, PAYLOADS_MOST, counting, groups_of, closed_group, rule_of, spend_rule, hold_back,
--      STRIDE, take_room, enter, throttled, fair, note_passed
local function pass(room, now)
  local most = math.min(policy.grouped and room + 32 or room, LOOKS)
  local front = redis.call('ZRANGE', backlog, 0, most - 1, 'WITHSCORES')
  local looked, ids, spent, reached = 0, {}, {}, {}
  while #ids < room and 2 * looked < #front and payloads_read < PAYLOADS_MOST do
    local id, score = front[2 * looked + 1], front[2 * looked + 2]
    looked = looked + 1
    local groups = counting and groups_of(id)
    local ruled = policy.grouped and groups ~= ''
    local closed = ruled and closed_group(groups, now)
    if closed then
      local rule = rule_of(closed, now)
      if spent[rule] then -- its rate has just been used up: this sets when it opens
        spend_rule(rule, spent[rule], now)
        spent[rule] = nil
      end
      hold_back(id, score, closed, rule.opens, now)
    else
      ids[#ids + 1] = id
      reached[-math.floor(score / STRIDE)] = score % STRIDE
      if ruled then
        take_room(groups, spent, now)
      end
      if counting then
        enter(id, groups)
      end
    end
  end
  if looked == 0 then
    return 0, 0
  end
  for rule, count in pairs(spent) do
    spend_rule(rule, count, now)
  end
  if #ids > 0 then
    redis.call('RPUSH', ready, unpack(ids))
  end
  redis.call('ZREMRANGEBYRANK', backlog, 0, looked - 1)
  if redis.call('EXISTS', backlog, throttled) == 0 then
    redis.call('DEL', fair)
  else
    for priority, order in pairs(reached) do
      note_passed(priority, order)
    end
  end
  return #ids, looked
end

-- Let as many jobs pass as the limits allow. `asked` is how many jobs this script itself takes from ready. Returns two
-- values. The first is the time at which the gate must be called again, because a rate opens, a pause ends or there was
-- more to look at than one call may; nil if it need not. The second says whether this call looked at any job or group.
--
-- A job that one of its groups lets go may be held back by the other, and the first then has room for another job. So
-- groups are reopened until nothing is left to look at.
-- USES keep_count, policy, is_paused, end_queue_pause, RATE_LEAST, READY_AHEAD, in_flight, tokens, throttled, reopen,
--      pass, LOOKS, payloads_read, PAYLOADS_MOST, call_idle, seconds, spend, REOPENED
local function open(asked, now)
  keep_count()
  if is_paused(now) then
    return tonumber(policy.paused_until)
  elseif policy.paused then
    end_queue_pause()
  end
  local rate = (policy.rate or 0) > RATE_LEAST and policy.rate
  local room = READY_AHEAD + asked - redis.call('LLEN', ready)
  if policy.concurrency then
    room = math.min(room, math.floor(policy.concurrency) - redis.call('HGET', in_flight, '*'))
  end
  if rate then
    room = math.min(room, (tokens(root .. 'arrival', rate, policy.burst, now)))
  end
  local by_group = policy.grouped or redis.call('EXISTS', throttled) == 1
  local passed, looked, reopened = 0, 0, 0
  local enough = false
  if room > 0 then
    repeat
      reopened = by_group and reopen(room - passed, now) or 0
      local went, saw = pass(room - passed, now)
      passed, looked = passed + went, looked + saw
      enough = looked >= LOOKS or payloads_read >= PAYLOADS_MOST
    until saw == 0 or passed >= room or enough
    call_idle(passed - asked)
  end
  local again
  if by_group then
    local after = '(' .. seconds(now)
    local nearest = redis.call('ZRANGE', throttled, after, '(+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    again = tonumber(nearest[2])
  end
  if rate then
    if passed > 0 then
      spend(root .. 'arrival', rate, policy.burst, passed, now)
    end
    if redis.call('EXISTS', backlog, throttled) > 0 then
      local _, opens = tokens(root .. 'arrival', rate, policy.burst, now)
      again = opens and math.min(opens, again or opens) or again
    end
  end
  if passed < room and (enough or reopened >= REOPENED) then
    again = now
  end
  return again, looked + reopened > 0
end

-- The gate, for every verb but dispatch. It publishes when the next rate opens: dispatchers sleep until then.
-- USES open, seconds
local function admit(asked, now)
  local again, changed = open(asked, now)
  if again and changed then
    redis.call('PUBLISH', root .. 'gate', seconds(again))
  end
end

-- Let the jobs pass that limits allow which this script has changed. A sleeping dispatcher knows only the old limits.
-- USES read_policy, admit, seconds
local function admit_anew(now)
  read_policy()
  admit(0, now)
  redis.call('PUBLISH', root .. 'gate', seconds(now))
end
