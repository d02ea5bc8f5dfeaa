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
-- their wrong type stops the jobs of that group alone. `anew`: limits change, so the jobs in flight may be counted.
-- USES expect, throttled, fair, policy, counting, is_bare
local function expect_gate(anew)
  expect('ZCARD', schedule, backlog)
  expect('LLEN', ready)
  if not is_bare then
    expect('ZCARD', throttled)
    expect('HLEN', fair)
  end
  if anew or (not counting and (policy.concurrency or policy.grouped)) then
    expect('ZCARD', leases) -- `keep_count` reads them
  end
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

-- Judge jobs by the limits of their groups, and count the ones that pass. Returns two functions: the first holds a
-- job back or lets it pass, and returns whether it did; the second is called after the last job.
-- USES groups_of, policy, closed_group, rule_of, spend_rule, hold_back, take_room, enter
local function judge_groups(now)
  local spent = {}
  local function passes(id, score)
    local groups = groups_of(id)
    local ruled = policy.grouped and groups ~= ''
    local closed = ruled and closed_group(groups, now)
    if closed then
      local rule = rule_of(closed, now)
      if spent[rule] then -- its rate has just been used up: this sets when it opens
        spend_rule(rule, spent[rule], now)
        spent[rule] = nil
      end
      hold_back(id, score, closed, rule.opens, now)
      return false
    end
    if ruled then
      take_room(groups, spent, now)
    end
    enter(id, groups)
    return true
  end
  local function spend_all()
    for rule, count in pairs(spent) do
      spend_rule(rule, count, now)
    end
  end
  return passes, spend_all
end

-- Raise passed:<p> by jobs that pass, which are in the order of the backlog and still there.
-- USES STRIDE, note_passed
local function note_turns(ids)
  local scores, reached = redis.call('ZMSCORE', backlog, ids[1], ids[#ids]), {}
  if math.floor(scores[1] / STRIDE) ~= math.floor(scores[2] / STRIDE) then
    scores = redis.call('ZMSCORE', backlog, unpack(ids)) -- of several priorities
  end
  for _, score in ipairs(scores) do
    reached[-math.floor(score / STRIDE)] = score % STRIDE
  end
  for priority, order in pairs(reached) do
    note_passed(priority, order)
  end
end

-- Let the front of the backlog pass, at most `room` jobs, and hold back those whose groups have reached a limit.
-- Returns how many passed, how many were looked at, and whether others wait.
-- USES policy, LOOKS, payloads_read, PAYLOADS_MOST, counting, judge_groups, throttled, fair, note_turns, is_bare
local function pass(room, now)
  local most = math.min(policy.grouped and room + 32 or room, LOOKS)
  local looked, ids = 0, {}
  if not counting then
    ids = redis.call('ZRANGE', backlog, 0, most - 1)
    looked = #ids
  else
    local front = redis.call('ZRANGE', backlog, 0, most - 1, 'WITHSCORES')
    local passes, spend_all = judge_groups(now)
    while #ids < room and 2 * looked < #front and payloads_read < PAYLOADS_MOST do
      local id, score = front[2 * looked + 1], front[2 * looked + 2]
      looked = looked + 1
      ids[#ids + 1] = passes(id, score) and id or nil
    end
    spend_all()
  end
  if looked == 0 then
    return 0, 0, false
  end
  local waits = redis.call('ZCARD', backlog) > looked
  waits = waits or ((policy.grouped or not is_bare) and redis.call('EXISTS', throttled) == 1)
  if #ids > 0 then
    redis.call('RPUSH', ready, unpack(ids))
    if waits then
      note_turns(ids)
    end
  end
  redis.call('ZREMRANGEBYRANK', backlog, 0, looked - 1)
  if not (waits or is_bare) then
    redis.call('DEL', fair)
  end
  return #ids, looked, waits
end

-- Let as many jobs pass as the limits allow. `asked` is how many jobs this script itself takes from ready. Returns two
-- values. The first is the time at which the gate must be called again, because a rate opens, a pause ends or there was
-- more to look at than one call may; nil if it need not. The second says whether this call looked at any job or group.
--
-- A job that one of its groups lets go may be held back by the other, and the first then has room for another job. So
-- groups are reopened until nothing is left to look at.
-- USES keep_count, policy, is_paused, end_queue_pause, RATE_LEAST, READY_AHEAD, in_flight, tokens, throttled, reopen,
--      pass, LOOKS, payloads_read, PAYLOADS_MOST, seconds, spend, REOPENED, is_bare, hand_over
local function open(asked, now)
  keep_count()
  if is_paused(now) then
    return tonumber(policy.paused_until)
  elseif policy.paused then
    end_queue_pause()
  end
  if redis.call('EXISTS', backlog, throttled) == 0 then
    return nil, false -- no job waits
  end
  local rate = (policy.rate or 0) > RATE_LEAST and policy.rate
  local room = READY_AHEAD + asked - redis.call('LLEN', ready)
  if policy.concurrency then
    room = math.min(room, math.floor(policy.concurrency) - redis.call('HGET', in_flight, '*'))
  end
  if rate then
    room = math.min(room, (tokens(root .. 'arrival', rate, policy.burst, now)))
  end
  local by_group = policy.grouped or (not is_bare and redis.call('EXISTS', throttled) == 1)
  local passed, looked, reopened = 0, 0, 0
  local enough = false
  if room > 0 then
    repeat
      reopened = by_group and reopen(room - passed, now) or 0
      local went, saw, waits = pass(room - passed, now)
      passed, looked = passed + went, looked + saw
      enough = looked >= LOOKS or payloads_read >= PAYLOADS_MOST
    until saw == 0 or passed >= room or enough or not (waits or by_group)
    if passed > asked then
      hand_over(passed - asked, now)
    end
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
-- USES open, seconds, is_bare
local function admit(asked, now)
  if is_bare and redis.call('EXISTS', backlog) == 0 then
    return -- as mostly
  end
  local again, changed = open(asked, now)
  if again and changed then
    redis.call('PUBLISH', root .. 'gate', seconds(again))
  end
end

-- Let the jobs pass that limits allow which this script has changed. A sleeping dispatcher knows only the old limits.
-- USES read_policy, open, seconds
local function admit_anew(now)
  read_policy()
  open(0, now)
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

-- The turn of a group in the backlog, for `next_score`. `save_turns` must follow.
-- USES turns, policy, limit_of, limits, order_of, WEIGHT_LEAST, STRIDE, is_bare
local function turn_of(priority, group)
  local name = priority .. ':' .. group
  local turn = turns[name]
  if not turn then
    local weight = policy.grouped and group ~= '' and limit_of(redis.call('HGET', limits, 'weight:' .. group))
    turn = {
      last = is_bare and 0 or math.max(order_of('passed:' .. priority), order_of('last:' .. name)),
      step = 1 / math.max(weight or 1, WEIGHT_LEAST),
      first = -priority * STRIDE,
    }
    turns[name] = turn
  end
  return turn
end

-- The score of the next job of a group in the backlog.
local function next_score(turn)
  local last = turn.last + turn.step
  turn.last = last
  local score = turn.first + last
  return score % 1 == 0 and ('%d'):format(score) or score -- Redis takes ten times as long to format a number
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

-- The limits of a queue, and the times that enforce its rates. `_in_flight.lua` has the counts.
--
-- limits     hash  concurrency, rate, burst; paused, paused_until and paused_why: since when, when the pause ends by
--                  itself, and why; with `:<group>` behind the name those of a group, with `:*` those
--                  of each group that has none of its own; weight:<group>; tasks, the names of the tasks that have a
--                  concurrency or a rate, with a `}` between them; origins, if origins have one; batches, how many are
--                  paused: the group of each has the concurrency 0
--                  `reserved`, of a new shard: JSON, field -> [how much of this limit is not to be used yet, because
--                  jobs that run in older parts of the queue use it; the limit of the whole queue]
-- declared_limits  hash  the limits that apps declare in their code, by the same fields: the value, a space, the app;
--                  in a shard, also a space and the limit of the whole queue. A limit was changed by hand if `limits`
--                  has another value
-- throttled  zset  the groups whose own limits hold jobs back -> when to look at them again
-- arrival    string  the state of the rate (GCRA); with `:<group>` behind the name that of a group's rate

local limits, throttled = root .. 'limits', root .. 'throttled'

-- Whether the queue lacks all keys that most queues lack most of the time, so that one command asks for all of them.
-- USES limits, throttled, fair, in_flight, suspects, sought
local is_bare = redis.call('EXISTS', limits, throttled, fair, in_flight, suspects, sought) == 0

local declared_limits = root .. 'declared_limits'

-- Seconds of a rate that are handed out as one packet: one script call and one wake-up serve a packet.
local PACKET = 0.05
-- Seconds of a rate that may pass at once after a silence, if there is no `burst`.
local BURST = 0.1
-- A lower rate than this, once in 11 days, means no rate.
local RATE_LEAST = 1e-6
-- The group of occurrences whose recurrence names none.
local RECURRING = '@recurring'
-- The prefixes of groups to which jobs belong besides their own group. One table, since a script has at most 200 local
-- names.
--
-- task    the limits of a task are those of its group
-- origin  so are those of an origin, where a job sends its request or message. `*` for the name: each that has none
-- batch   the group of the jobs of a batch, which has a limit only while the batch is paused
local KIND = { task = 'task:', origin = 'origin:', batch = 'batch:' }
-- The tasks whose jobs have an origin, as payloads name them, and the argument that says it.
local ORIGIN_IN = { ['evsched.http'] = 'url', ['evsched.forward'] = 'to' }

-- A limit as a number. A malformed value, written by hand and not by `limit`, means no limit.
local function limit_of(text)
  local number = tonumber(text)
  return number and number >= 0 and number < 1e12 and number or nil
end

-- How much of a limit older parts of the queue still use, by what `policy.reserved` has.
-- USES limit_of
local function reserved_of(reserved, field)
  local found = reserved and reserved[field]
  return type(found) == 'table' and limit_of(found[1]) or 0
end

-- Read the limits, of which there are `ruled`.
-- USES limits, limit_of, moment_of, ORIGIN_IN, reserved_of
local function read_limits(ruled)
  local found, whole = {}, { 'paused', 'concurrency', 'rate', 'burst', 'paused_until', 'paused_why', 'reserved' }
  whole[8], whole[9], whole[10] = 'history', 'history_age', 'batches'
  local fields = redis.call('HMGET', limits, 'concurrency:*', 'rate:*', 'burst:*', 'tasks', 'origins', unpack(whole))
  found.paused, found.paused_until = fields[6], moment_of(fields[10] or nil)
  found.concurrency, found.rate, found.burst = limit_of(fields[7]), limit_of(fields[8]), limit_of(fields[9])
  found.each_group = { unpack(fields, 1, 3) }
  -- The tasks for whose jobs the payload must be read, and how it names them.
  found.tasks, found.origins, found.named = {}, fields[5], (fields[4] or fields[5]) and {}
  for task in (fields[4] or ''):gmatch('[^}]+') do
    found.tasks[task] = true
    found.named[task] = '"' .. task .. '"'
  end
  for task in pairs(found.origins and ORIGIN_IN or {}) do
    found.named[task] = '"' .. task .. '"'
  end
  found.history, found.history_age = limit_of(fields[13]), limit_of(fields[14])
  found.batches = fields[15]
  for i = 6, 14 do
    ruled = ruled - (fields[i] and 1 or 0)
  end
  if fields[12] then
    local good, reserved = pcall(cjson.decode, fields[12])
    found.reserved = good and type(reserved) == 'table' and reserved or {}
    found.concurrency = found.concurrency
      and math.max(0, found.concurrency - reserved_of(found.reserved, 'concurrency'))
  end
  found.grouped = ruled > 0
  return found
end

-- The limits that are set. This read refuses a key of the wrong type before the verb has written anything. `rules`: the
-- limits of groups that this call has read: see `rule_of`. `is_known`: there are none.
-- USES limits, read_limits, HISTORY, is_bare
local policy
local function read_policy(is_known)
  local ruled = is_known and 0 or redis.call('HLEN', limits)
  policy = ruled > 0 and read_limits(ruled) or {}
  policy.rules = {}
  policy.history, policy.history_age = policy.history or HISTORY.most, policy.history_age or HISTORY.age
end
read_policy(is_bare)

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
-- USES limits, policy, limit_of, reserved_of, RECURRING, KIND
local function limits_of(group)
  local own = redis.call('HMGET', limits, 'concurrency:' .. group, 'rate:' .. group, 'burst:' .. group)
  local each, all = policy.each_group or {}, '*'
  if group:sub(1, #KIND.origin) == KIND.origin then
    all = KIND.origin .. '*'
    each = redis.call('HMGET', limits, 'concurrency:' .. all, 'rate:' .. all, 'burst:' .. all)
  elseif group == RECURRING or group:sub(1, #KIND.task) == KIND.task or group:sub(1, #KIND.batch) == KIND.batch then
    each = {}
  end
  local rate = own[2] and own or { false, each[2], own[3] or each[3] }
  local most = limit_of(own[1] or each[1])
  most = most and math.max(0, most - reserved_of(policy.reserved, 'concurrency:' .. (own[1] and group or all)))
  return most, limit_of(rate[2]), limit_of(rate[3])
end

-- The room that a group's own limits leave: `room`, how many jobs, and `opens`, when its rate opens if there is none.
-- USES policy, limits_of, in_flight, RATE_LEAST, tokens
local function rule_of(group, now)
  local rule = policy.rules[group]
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
    policy.rules[group] = rule
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
-- USES policy, RATE_LEAST, spend, groups_of, split_groups, rule_of
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
    policy.rules[group] = nil -- it has more room now
  end
end
