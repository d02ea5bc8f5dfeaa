#!lua flags=allow-oom
-- dispatch: schedule -> backlog, for what is due; and the answer to "how long may I sleep?"
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        limit     how many at most, under 1000; 16 more in a flood
--        cap       bytes that a payload may have
--        canary    the dispatcher's id, '' = no proof: a message that proves its subscription, and a keyspace event
--                  that proves the notifications, in the same round trip
-- REPLY  now; the sleep in seconds until the next due or until the gate opens by its rate, '0' = more is due already,
--        '' = nothing is scheduled;
--        list of the dues moved on; list of id, reason of what went to dead; list of the recurrences of which an
--        occurrence was missed; the seconds until the gate opens by its rate, '' = it does not by itself
-- FAILS  none
-- TWICE  the second call finds nothing due
--
-- O(n log n) in the n <= limit jobs moved, about 4 us each. A member that begins with `{` is a job inline: it
-- becomes a record here. What cannot run goes to dead with a reason, and disturbs no other.

local now, limit, cap, canary = unpack(ARGV, 1, 4)
now, limit, cap = clock(now), tonumber(limit), tonumber(cap)

-- How long a record may come after its ZADD.
local RECORD_WAIT = 2
-- Of a group's share.
local WEIGHT_LEAST = 0.001
-- How many of the newest a call looks at when there is more due than it moves.
local NEWEST = 16
-- How many bytes of members and fields a call takes up, and how many members it reads at once: inline jobs may be long.
local BYTES_MOST, SLICE = 1048576, 16
-- A member beyond this is not kept, nor read through: four times what the cap lets a payload have by default.
local MEMBER_MOST = 1048576

if canary ~= '' then
  redis.call('DEL', root .. 'canary')
  redis.call('ZADD', root .. 'canary', 0, '')
  redis.call('DEL', root .. 'canary')
  redis.call('PUBLISH', 'evsched:canary:' .. canary, '1')
end

expect('ZCARD', dead)
expect_gate()

-- What is due as member, score, ..., the earliest first: at most `limit`, and no more than so many bytes.
local function read_due()
  local found, bytes = {}, 0
  local count = math.min(limit, redis.call('ZCOUNT', schedule, '-inf', seconds(now)))
  if count == 0 then
    -- What is too long to be a job goes before its time: whoever looks at the front is handed it each time.
    local front = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')
    return front[1] and #front[1] > math.max(MEMBER_MOST, cap) and front or found
  end
  for first = 0, count - 1, SLICE do
    local slice = redis.call('ZRANGE', schedule, first, math.min(first + SLICE, count) - 1, 'WITHSCORES')
    for i = 1, #slice, 2 do
      bytes = bytes + #slice[i]
      if bytes > BYTES_MOST and #found > 0 then
        return found
      end
      found[#found + 1], found[#found + 2] = slice[i], slice[i + 1]
    end
  end
  return found
end

local due = read_due()
if #due == 2 * limit then
  -- A flood. What falls due in the midst of it, in another group, is not behind it here either.
  local newest =
    redis.call('ZRANGE', schedule, seconds(now), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, NEWEST, 'WITHSCORES')
  local last, last_id = tonumber(due[#due]), due[#due - 1]
  local flood = field_of(last_id, 'group') or ''
  for i = #newest - 1, 1, -2 do
    local id, score = newest[i], tonumber(newest[i + 1])
    local further = score > last or (score == last and id > last_id)
    if further and id:byte() ~= 123 and (field_of(id, 'group') or '') ~= flood then
      due[#due + 1] = id
      due[#due + 1] = newest[i + 1]
    end
  end
end
local is_ready = {}
if #due > 0 then
  for _, id in ipairs(redis.call('LRANGE', ready, 0, -1)) do
    is_ready[id] = true
  end
end

-- The id of a member that names none. The SHA-1 of one that is too long to be a job would take long itself.
local function digest(member)
  if #member <= MEMBER_MOST then
    return redis.sha1hex(member)
  end
  return redis.sha1hex(#member .. member:sub(1, 4096) .. member:sub(-4096))
end

local moved, buried, missed, places, gone, turns = {}, {}, {}, {}, {}, {}

-- An id that waits already has the same record: it is out of there too, not in two places.
local function quarantine(id, reason)
  remove_waiting(id)
  bury(id, 'dead', reason, now)
  buried[#buried + 1] = id
  buried[#buried + 1] = reason
end

-- A member that cannot be a job's id is kept under an id made from it, with what its record held.
local function quarantine_member(member, reason)
  local id = 'bad-' .. digest(member)
  if redis.call('TYPE', record(member)).ok == 'hash' then
    redis.call('RENAME', record(member), record(id))
  end
  redis.call('HSET', record(id), 'member', #member <= 1024 and member or member:sub(1, 1024))
  quarantine(id, reason)
end

-- What an inline job that went to dead was, for who looks: its beginning alone when it is longer than a record may be.
local function keep(id, member)
  if #member <= MEMBER_MOST then
    redis.call('HSET', record(id), 'payload', member)
  else
    redis.call('HSET', record(id), 'member', member:sub(1, 1024))
  end
end

-- The job inline as a table, or nil and what is wrong with it.
local function decode(member)
  local good, job = pcall(cjson.decode, member)
  if not good then
    return nil, 'the inline job is not valid JSON (' .. tostring(job) .. '): mend it and schedule it again'
  end
  for _, field in ipairs({ 'id', 'priority', 'group' }) do
    if job[field] == cjson.null then
      job[field] = nil
    end
  end
  if job.id ~= nil and type(job.id) ~= 'string' then
    return nil, 'the id of the inline job is not a string: put it in quotes'
  end
  if job.group ~= nil and type(job.group) ~= 'string' then
    return nil, 'the group of the inline job is not a string: put it in quotes'
  end
  return job
end

-- From an inline member to the id of a record that holds it, or nil when it went to dead.
local function adopt(member)
  local id = digest(member)
  local job, wrong
  if #member > cap then
    wrong = 'the payload has '
      .. #member
      .. ' bytes, more than '
      .. cap
      .. ': store the data elsewhere and pass a reference'
  else
    job, wrong = decode(member)
  end
  if wrong then
    keep(id, member)
    quarantine(id, wrong)
    return nil
  end
  id = job.id or id
  if #id > 200 or not id:find('^[%w._:@-]+$') then
    local safe = digest(member)
    keep(safe, member)
    quarantine(
      safe,
      'the id of the inline job is not 1 to 200 of A-Z a-z 0-9 . _ : @ -: schedule it again under such an id'
    )
    return nil
  end
  local fields = { 'payload', member }
  if job.priority ~= nil then
    fields[#fields + 1] = 'priority'
    fields[#fields + 1] = tostring(job.priority)
  end
  if job.group then
    fields[#fields + 1] = 'group'
    fields[#fields + 1] = job.group
  end
  if type(redis.pcall('HSET', record(id), unpack(fields))) == 'table' then
    local safe = digest(member)
    keep(safe, member)
    quarantine(safe, 'the key of the record of ' .. id .. ' is not a hash: DEL it and schedule the job again')
    return nil
  end
  return id
end

-- How far a group's turns are apart: one of weight 2 has them half as far.
local function step_of(group)
  local weight = policy.grouped and group ~= '' and limit_of(redis.call('HGET', limits, 'weight:' .. group))
  return 1 / math.max(weight or 1, WEIGHT_LEAST)
end

local function order_of(field)
  return tonumber(redis.call('HGET', fair, field) or 0)
end

-- The job's order in the backlog: its priority, then its group's turn (self-clocked fair queueing).
local function position(priority, group)
  local name = priority .. ':' .. group
  local turn = turns[name]
  if not turn then
    turn = { last = math.max(order_of('passed:' .. priority), order_of('last:' .. name)), step = step_of(group) }
    turns[name] = turn
  end
  turn.last = turn.last + turn.step
  return -priority * STRIDE + turn.last
end

-- Groups whose last turn has passed say nothing: some of them go when there are very many.
local function sweep()
  local fields = redis.call('HRANDFIELD', fair, 2 * limit, 'WITHVALUES')
  for i = 1, #fields, 2 do
    local priority = fields[i]:match('^last:(%d):')
    if priority and tonumber(fields[i + 1]) <= order_of('passed:' .. priority) then
      redis.call('HDEL', fair, fields[i])
    end
  end
end

-- No payload yet: look again soon, twice as late each time, so that it starts at most twice as late as it came.
local function await(id, score, since)
  since = math.min(tonumber(moment_of(since)) or now, now)
  if now - since >= RECORD_WAIT then
    return false
  end
  redis.call('HSET', record(id), 'awaited', seconds(since), 'due', score)
  redis.call('ZADD', schedule, seconds(math.min(now + math.max(0.01, now - since), since + RECORD_WAIT)), id)
  return true
end

-- How many bytes of fields were read.
local read = 0

-- One job that is due, of a good id. True when it leaves the schedule.
local function pass(id, score)
  local key = record(id)
  local size = redis.pcall('HSTRLEN', key, 'payload')
  if type(size) == 'table' then
    quarantine_member(id, 'the key of its record is not a hash: DEL it and schedule the job again')
    return true
  end
  local run =
    redis.call('HMGET', key, 'worker', 'finished', 'priority', 'group', 'awaited', 'due', 'parked', 'recurrence')
  for field = 1, 8 do
    read = read + #(run[field] or '')
  end
  local worker, finished, priority, group, awaited = run[1], run[2], run[3] or '5', run[4] or '', run[5]
  if worker then
    if holds(worker_of(worker), id) then
      -- It runs now: the verb that ends the run puts it on the schedule again, and only then is it judged.
      redis.call('HSET', key, 'again', score)
      return true
    end
    redis.call('HDEL', key, 'worker')
  end
  if size == 0 then
    if not finished and await(id, awaited and moment_of(run[6]) or score, awaited) then
      return false
    end
    quarantine(
      id,
      'no payload in its record: HSET ' .. key .. ' payload {...} before the ZADD, or at most 2 s after it'
    )
    return true
  end
  if size > cap then
    quarantine(
      id,
      'the payload has ' .. size .. ' bytes, more than ' .. cap .. ': store the data elsewhere and pass a reference'
    )
    return true
  end
  if not priority:find('^%d$') then
    quarantine(id, 'the priority is not a whole number from 0 to 9: HSET ' .. key .. ' priority 5')
    return true
  end
  if run[4] and not group_of(group) then
    quarantine(id, 'the group has more than 200 bytes, or a `}`: give it another name')
    return true
  end
  if awaited then
    score = moment_of(run[6]) or score
    redis.call('HDEL', key, 'awaited')
  end
  if finished then
    -- An id used again after its job ended.
    redis.call('PERSIST', key)
    clear_ended(id)
    redis.call('ZREM', dead, id)
    redis.call('DEL', root .. 'reply:' .. id)
  end
  local aside = run[7] and aside_in(id)
  local name = run[8] and recurrence_of(id, run[8])
  local verdict = name and not is_ready[id] and not aside and falls_due(name, id, score, now) or 'go'
  if verdict == 'wait' then
    redis.call('ZADD', schedule, '+inf', id)
    return false
  elseif verdict == 'skip' then
    tally(name, 'missed', 1)
    missed[#missed + 1] = name
    redis.call('DEL', key)
    return true
  end
  if not is_ready[id] and not aside then
    -- A score of 0, or near it, means "now": from here on, that is a time.
    score = tonumber(score) >= 1 and score or seconds(now)
    redis.call('HSET', key, 'due', score)
    places[#places + 1] = position(tonumber(priority), group)
    places[#places + 1] = id
    moved[#moved + 1] = score
  end
  return true
end

for i = 1, #due, 2 do
  if read > BYTES_MOST then
    break
  end
  local member, score = due[i], due[i + 1]
  local id, leaves = member, true
  if member:byte() == 123 then -- {
    id = adopt(member)
  elseif #member > 200 or not member:find('^[%w._:@-]+$') then
    quarantine_member(member, 'the id is not 1 to 200 of A-Z a-z 0-9 . _ : @ -: schedule it again under such an id')
    id = nil
  end
  if id then
    leaves = pass(id, score)
  end
  if leaves then
    gone[#gone + 1] = member
  end
end

if #places > 0 then
  redis.call('ZADD', backlog, 'NX', unpack(places))
  if redis.call('ZCARD', dead) > 0 then
    -- An id used again whose record was deleted first: nothing of it says that it was dead.
    local ids = {}
    for i = 2, #places, 2 do
      ids[#ids + 1] = places[i]
    end
    redis.call('ZREM', dead, unpack(ids))
  end
  for name, turn in pairs(turns) do
    redis.call('HSET', fair, 'last:' .. name, turn.last)
  end
  if redis.call('HLEN', fair) > ORDER_MOST then
    sweep()
  end
end
if #gone > 0 then
  redis.call('ZREM', schedule, unpack(gone))
end
local opens = open(0, now)

local sleep = ''
local nearest = tonumber(redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2])
if nearest or opens then
  sleep = seconds(math.max(0, math.min(nearest or opens, opens or nearest) - now))
end
return { seconds(now), sleep, moved, buried, missed, opens and seconds(math.max(0, opens - now)) or '' }
