-- The audit: what is wrong with an id, or with a count. Stands behind the recurrences, before every verb.
--
-- Each judgement reads all places of an id in one moment, so a job that moves is never between two of them. `audit` and
-- `recount` tell; `mend` judges again before it writes.

-- What the lists hold, each read once a call.
local lists_read = {}

-- The ids in a list, as a set. O(n) once, instead of O(n) for each id.
-- USES lists_read
local function listed_in(list)
  local found = lists_read[list]
  if not found then
    found = {}
    for _, id in ipairs(redis.pcall('LRANGE', list, 0, -1)) do -- pcall: what is no list holds none
      found[id] = true
    end
    lists_read[list] = found
  end
  return found
end

-- The workers whose lists count: those with a lease, and the strays, which the caller found by their lists.
local function list_owners(strays)
  local owners = redis.call('ZRANGE', leases, 0, -1)
  for worker in strays:gmatch('%S+') do
    owners[#owners + 1] = worker
  end
  return owners
end

-- Is the id in any worker's list? Asked for the few that are nowhere else: taken a moment ago, or lost.
-- USES list_owners, listed_in, processing
local function held_by_any(id, strays)
  for _, worker in ipairs(list_owners(strays)) do
    if listed_in(processing(worker))[id] then
      return true
    end
  end
  return false
end

-- An occurrence that waits for an end that has been, or that nobody will tell of.
-- USES recurrence, unended
local function waits_in_vain(id, name)
  local found = redis.pcall('HMGET', recurrence(name), 'waiting', 'current')
  return found[1] == id and not (found[2] and unended(found[2]))
end

-- What is wrong with an id: a list of { code, where }. `from` is the place where the caller met it, if the record need
-- not name that: `processing:<worker>` or `backlog:<group>`; else ''.
--
-- Legitimate, and so not told: an id on the schedule while it is anywhere else (it was scheduled again); an id in two
-- workers' lists, or in one and in line, until the second `start`; in dead and on the schedule, until dispatch.
-- USES record, worker_of, moment_of, group_of, recurrence_of, throttled_in, group_backlog, listed_in, processing,
--      held_by_any, seconds, waits_in_vain
local function violations_of(id, from, strays, now)
  local key, wrongs = record(id), {}
  local function wrong(code, where)
    wrongs[#wrongs + 1] = { code, where }
  end
  local size = redis.pcall('HSTRLEN', key, 'payload')
  if type(size) == 'table' then
    return { { 'record-type', '' } }
  end
  local payload = size > 0
  local run = redis.call('HMGET', key, 'worker', 'finished', 'outcome', 'due', 'parked', 'recurrence')
  local worker, finished, outcome = worker_of(run[1]), run[2], run[3]
  local due, parked, name = moment_of(run[4]), group_of(run[5]), recurrence_of(id, run[6])
  local ttl = redis.call('PTTL', key) -- -2: there is no record
  local scheduled, buried = redis.call('ZSCORE', schedule, id), redis.call('ZSCORE', dead, id)
  local aside = throttled_in(id)
  -- Where it is in line, and where it is held.
  local line = {}
  if redis.call('ZSCORE', backlog, id) then
    line[#line + 1] = 'backlog'
  end
  if aside then
    line[#line + 1] = 'backlog:' .. parked
  end
  local beside = from:match('^backlog:(.*)$')
  if beside and beside ~= parked and type(redis.pcall('ZSCORE', group_backlog(beside), id)) == 'string' then
    line[#line + 1] = from
  else
    beside = nil
  end
  if listed_in(ready)[id] then
    line[#line + 1] = 'ready'
  end
  local held = worker and not finished and listed_in(processing(worker))[id]
  if not held and from:find('^processing:') then
    held = listed_in(root .. from)[id]
  end
  local lies = line[1] or (held and 'processing') or (scheduled and 'schedule')
  if #line > 1 then
    wrong('two-places', table.concat(line, ' and '))
  elseif finished and line[1] then
    wrong('two-places', 'finished and ' .. line[1])
  end
  if run[5] and not aside then
    wrong('parked', parked or '')
  end
  if beside and payload and #line == 1 then
    wrong('unparked', beside)
  end
  if not payload and not finished and lies then
    wrong('no-record', lies)
  elseif ttl == -2 then
    if buried then
      wrong('dead-without-record', '')
    end
  elseif not finished and not lies and not buried and not held_by_any(id, strays) then
    wrong(payload and due and 'orphan' or 'unscheduled', due or '')
  elseif buried and ((not finished and lies) or outcome == 'done' or outcome == 'cancelled') then
    wrong('stale-dead', finished and outcome or lies)
  elseif finished and ttl == -1 and not lies and not buried and not held_by_any(id, strays) then
    wrong('no-ttl', '')
  end
  if ttl >= 0 then
    local late = finished and scheduled and scheduled ~= 'inf' and tonumber(scheduled) > now + ttl / 1000
    if not finished or late or (buried and outcome ~= 'done' and outcome ~= 'cancelled') then
      wrong('record-expires', seconds(now + ttl / 1000))
    end
  end
  if scheduled == 'inf' and name and waits_in_vain(id, name) then
    wrong('stuck', name)
  end
  return wrongs
end

-- Does the worker run the job, by its record?
-- USES record
local function runs_here(worker, id)
  local run = redis.pcall('HMGET', record(id), 'worker', 'finished')
  return run[1] == worker and not run[2]
end

-- The fields of `in_flight` that a recount finds otherwise: field, the right value or false, ... Nil and how many there
-- are when that is more than `most`, since it must be one moment.
-- What strays hold may count or not: `keep_count` does not see them. So may what a worker has taken and not started: if
-- it lies in two lists, the end of the run in the other takes it out of the count, until `start`.
-- USES in_flight, size_of, processing, listed_in, runs_here, group_of, field_of
local function miscounts(strays, most)
  local owners, total = redis.call('ZRANGE', leases, 0, -1), redis.call('HLEN', in_flight) + redis.call('LLEN', ready)
  for _, worker in ipairs(owners) do
    total = total + size_of('LLEN', processing(worker))
  end
  if total > most then
    return nil, total
  end
  local told = redis.call('HGETALL', in_flight)
  if #told == 0 then
    return {} -- nothing needs the count
  end
  local uncounted, tolerated = {}, {}
  for id in pairs(listed_in(ready)) do
    uncounted[id] = ''
  end
  for _, worker in ipairs(owners) do
    for id in pairs(listed_in(processing(worker))) do
      uncounted[id] = worker
    end
  end
  for worker in strays:gmatch('%S+') do
    for id in pairs(listed_in(processing(worker))) do
      tolerated[id] = true
    end
  end
  local right, sum = {}, 0
  local function count(id, group)
    right[id] = group
    sum = sum + 1
    right['#' .. group] = (right['#' .. group] or 0) + 1
  end
  for i = 1, #told, 2 do
    local id = told[i]
    if not id:find('^[*#]') and (uncounted[id] or tolerated[id]) then
      count(id, told[i + 1])
      uncounted[id] = nil
    end
  end
  for id, worker in pairs(uncounted) do
    if worker == '' or runs_here(worker, id) then
      count(id, group_of(field_of(id, 'group')) or '')
    end
  end
  right['*'] = sum
  local changes = {}
  for i = 1, #told, 2 do
    local field, value = told[i], right[told[i]]
    if tostring(value) ~= told[i + 1] then
      changes[#changes + 1] = field
      changes[#changes + 1] = value and tostring(value) or false
    end
    right[field] = nil
  end
  for field, value in pairs(right) do
    changes[#changes + 1] = field
    changes[#changes + 1] = tostring(value)
  end
  return changes
end

-- Is the group's backlog one that nobody will open ('stranded'), or its entry in `throttled` one without a backlog
-- ('throttled')?
-- USES throttled, group_backlog
local function group_violation(group)
  local is_throttled = redis.call('ZSCORE', throttled, group)
  local waits = redis.call('EXISTS', group_backlog(group)) == 1
  if waits ~= (is_throttled and true or false) then
    return waits and 'stranded' or 'throttled'
  end
end
