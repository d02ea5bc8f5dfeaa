#!lua flags=no-writes
-- explain: moves nothing. Reads why a job has not run yet: its place and the facts that hold it there, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
-- REPLY  now; the place, '' = there is no such job; its score there, or ''; of a job that a worker holds, the score of
--        its id on the schedule; the record as field, value, ...; all limits as field, value, ..., and the limits that
--        apps declare; the facts as name, value, ...; the redacted arguments that workers have declared as task,
--        JSON, ... The facts:
--        workers, how many have a lease here; parents, how many stand by to start one; ahead, how many wait before it
--        in the same place; waiting, in the backlog; groups, how many groups of its priority wait; weights,
--        their sum; in_flight, how many have passed the gate and not ended, and in_flight_group, those of the group
--        that holds it back, or else of its own; opens and opens_group, when a rate lets the next pass; holder, and
--        when its lease ends; idle, of a ready job: how many workers wait for a message
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, field_of, group_of, priority_of, throttled_in, place_of, fair, limit_of, limits, seconds,
--        group_backlog, in_flight, policy, RATE_LEAST, tokens, rule_of, holder_of, readable_record, declared_limits,
--        parents, size_of, declared_redactions, idle
--
-- O(log n), and O(n) in the groups that wait, which are not counted beyond 1,000.

local now, id = unpack(ARGV, 1, 2)
now = clock(now)
local worker, group = field_of(id, 'worker'), group_of(field_of(id, 'group')) or ''
local priority, parked = priority_of(field_of(id, 'priority')) or 5, (throttled_in(id))
local place, score = place_of(id, worker, field_of(id, 'finished'))

local facts = { 'workers', redis.call('ZCARD', leases), 'waiting', redis.call('ZCARD', backlog) }
local standing = size_of('ZCOUNT', parents, seconds(now), '+inf')
local function fact(name, value)
  if value then
    facts[#facts + 1] = name
    facts[#facts + 1] = value
  end
end

-- How many groups share the gate at this priority, and the sum of their weights.
local function shares()
  if redis.call('HLEN', fair) > 1000 then
    return
  end
  local passed = tonumber(redis.call('HGET', fair, 'passed:' .. priority) or 0)
  local fields, groups, weights = redis.call('HGETALL', fair), 0, 0
  local before = 'last:' .. priority .. ':'
  for i = 1, #fields, 2 do
    local of = fields[i]:sub(1, #before) == before and fields[i]:sub(#before + 1)
    if of and (tonumber(fields[i + 1]) > passed or of == group) then
      groups = groups + 1
      weights = weights + (limit_of(redis.call('HGET', limits, 'weight:' .. of)) or 1)
    end
  end
  fact('groups', groups)
  fact('weights', seconds(weights))
end

fact('parents', standing > 0 and standing)
if place == 'backlog' then
  fact('ahead', redis.call('ZRANK', parked and group_backlog(parked) or backlog, id))
  fact('in_flight', redis.call('HGET', in_flight, '*'))
  fact('in_flight_group', redis.call('HGET', in_flight, '#' .. (parked or group)))
  shares()
  if (policy.rate or 0) > RATE_LEAST then
    local _, opens = tokens(root .. 'arrival', policy.rate, policy.burst, now)
    fact('opens', opens and seconds(opens))
  end
  local opens = parked and rule_of(parked, now).opens
  fact('opens_group', opens and seconds(opens))
elseif place == 'ready' then
  fact('ahead', redis.call('LPOS', ready, id))
  fact('idle', size_of('ZCARD', idle))
elseif place == 'processing' then
  local holder = holder_of(id, worker)
  score = redis.call('ZSCORE', schedule, id)
  fact('holder', holder)
  fact('lease', holder and redis.call('ZSCORE', leases, holder))
end
local set, declared = redis.call('HGETALL', limits), redis.pcall('HGETALL', declared_limits)
if declared.err then
  declared = {} -- of another type: no job waits for it
end
return { seconds(now), place or '', score or '', readable_record(id), set, declared, facts, declared_redactions() }
