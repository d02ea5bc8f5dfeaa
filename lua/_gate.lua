-- The gate: the one way from the backlog to ready.
--
-- backlog          zset  id -> order: the jobs that may pass next
-- backlog:<group>  zset  the same for the jobs that a group's own limits hold back, out of the others' way
--
-- Every script that frees room or adds jobs calls `admit`, or in `dispatch` `open`, so nothing polls. Only a rate, and
-- the end of a pause, open it by themselves, at a moment that the dispatcher knows.

-- How many jobs wait in ready beyond the number asked for: enough that workers blocked on it never wait for a
-- dispatcher, few enough that a later job of a higher priority does not wait behind them.
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

-- Fair queueing: the order of jobs in the backlog, so that the groups of one priority take turns.
--
-- fair  hash  only while jobs wait: last:<p>:<group> = the order of the group's last job; passed:<p> = the order of the
--             last job of priority p that passed the gate
--
-- Self-clocked fair queueing (Golestani 1994): a job's order is the larger of these two, plus its group's step. The
-- step of a group of weight 2 is half the step of a group of weight 1, so its turns come twice as often.

local fair = root .. 'fair'

-- A job's score in the backlog is -priority * STRIDE + order. Ten priorities of 1e12 stay exact in a double (2^53).
local STRIDE = 1e12
-- Beyond this many fields of `fair`, the groups that have had their turn are swept out.
local ORDERS_MOST = 10000
-- The least weight of a group, so that its step stays finite.
local WEIGHT_LEAST = 0.001

-- Raise passed:<p>. It never falls: the return of jobs that a group's own limit held back does not set others back.
-- USES fair
local function note_passed(priority, order)
  local field = string.format('passed:%d', priority)
  if order > tonumber(redis.call('HGET', fair, field) or 0) then
    redis.call('HSET', fair, field, order)
  end
end

-- USES fair
local function order_of(field)
  return tonumber(redis.call('HGET', fair, field) or 0)
end

-- The groups that this call has given turns to: `<p>:<group>` -> their last order, and their step.
local turns = {}

-- The score of the next job of a group in the backlog. `save_turns` must follow.
-- USES turns, policy, limit_of, limits, order_of, WEIGHT_LEAST, STRIDE
local function next_score(priority, group)
  local name = priority .. ':' .. group
  local turn = turns[name]
  if not turn then
    local weight = policy.grouped and group ~= '' and limit_of(redis.call('HGET', limits, 'weight:' .. group))
    turn = {
      last = math.max(order_of('passed:' .. priority), order_of('last:' .. name)),
      step = 1 / math.max(weight or 1, WEIGHT_LEAST),
    }
    turns[name] = turn
  end
  turn.last = turn.last + turn.step
  return -priority * STRIDE + turn.last
end

-- Keep the turns of this call, and sweep up to `most` fields of `fair` when it has grown large.
-- USES turns, fair, ORDERS_MOST, order_of
local function save_turns(most)
  for name, turn in pairs(turns) do
    redis.call('HSET', fair, 'last:' .. name, turn.last)
  end
  if redis.call('HLEN', fair) <= ORDERS_MOST then
    return
  end
  local fields = redis.call('HRANDFIELD', fair, most, 'WITHVALUES')
  for i = 1, #fields, 2 do
    local priority = fields[i]:match('^last:(%d):')
    if priority and tonumber(fields[i + 1]) <= order_of('passed:' .. priority) then
      redis.call('HDEL', fair, fields[i])
    end
  end
end

-- Idle workers wait for a message instead of in BLMOVE. A BLMOVE occupies a connection and reads one list, so a worker
-- of many shards would need a connection for each. The messages of all queues of a server arrive on one connection.
--
-- idle  zset  worker -> since when it waits
--
-- `start` adds a worker in the same call in which it finds ready empty. The scripts that put a job into ready
-- take out the worker that has waited longest, and send it a message on its own channel. So one job wakes one worker,
-- and no job is put into ready while a worker stays in `idle`.
local idle = root .. 'idle'

-- Send a message to as many idle workers as jobs were put into ready. If a worker has died, its message reaches nobody,
-- and the next worker gets one. pcall: a key of another type, or a user without the right, stops no job that others
-- fetch.
-- USES idle
local function call_idle(jobs)
  while jobs > 0 do
    local first = redis.pcall('ZPOPMIN', idle, math.min(jobs, 100))
    if first.err or #first == 0 then
      return
    end
    for i = 1, #first, 2 do
      local receivers = redis.pcall('SPUBLISH', root .. 'idle:' .. first[i], '')
      if type(receivers) == 'number' and receivers > 0 then
        jobs = jobs - 1
      end
    end
  end
end

-- A worker stops waiting. If it got the message of a job that it does not take, another worker gets one. '': a worker
-- did not come after its message. Others may hang too, so all that wait get a message.
-- USES idle, call_idle, size_of
local function decline(worker)
  if redis.pcall('ZREM', idle, worker) ~= 1 and size_of('LLEN', ready) > 0 then
    call_idle(worker == '' and size_of('ZCARD', idle) or 1)
  end
end
