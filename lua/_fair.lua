-- Fair queueing: the order of jobs in the backlog, so that the groups of one priority take turns.
--
-- fair  hash  only while jobs wait: last:<p>:<group> = the order of the group's last job; passed:<p> = the order of the
--             last job of priority p that passed the gate
--
-- Self-clocked fair queueing (Golestani 1994): a job's order is the larger of these two, plus its group's step. The
-- step of a group of weight 2 is half that of a group of weight 1, so its turns come twice as often.

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
