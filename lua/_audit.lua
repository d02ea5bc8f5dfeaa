-- The audit: checks of an id, and of the counts of the gate.
--
-- Each check reads all places of an id in one moment, so a job that moves is never between two of them. `audit` and
-- `recount` report violations; `mend` checks again before it writes.

-- The ids in lists, each list read once a call.
local lists_read = {}

-- The ids in a list, as a set. O(n) once, instead of O(n) for each id.
-- USES lists_read
local function listed_in(list)
  local found = lists_read[list]
  if not found then
    found = {}
    for _, id in ipairs(redis.pcall('LRANGE', list, 0, -1)) do -- pcall: a key of another type holds none
      found[id] = true
    end
    lists_read[list] = found
  end
  return found
end

-- The workers whose lists count: all that may hold jobs, and strays, which have a list and no lease.
-- USES holders
local function list_owners(strays)
  local owners = holders()
  for worker in strays:gmatch('%S+') do
    owners[#owners + 1] = worker
  end
  return owners
end

-- Is the id in any worker's list? Asked only of ids that are nowhere else: just fetched, or lost.
-- USES list_owners, listed_in, processing
local function held_by_any(id, strays)
  for _, worker in ipairs(list_owners(strays)) do
    if listed_in(processing(worker))[id] then
      return true
    end
  end
  return false
end

-- Does an occurrence wait for a run that has already ended, or whose end will not be noted?
-- USES recurrence, unended
local function waits_in_vain(id, name)
  local found = redis.pcall('HMGET', recurrence(name), 'waiting', 'current')
  return found[1] == id and not (found[2] and unended(found[2]))
end

-- The places where a due job waits, which should be one. `from`: see violations_of. The second value is the group in
-- whose backlog the caller met the job, if it waits there and its record does not name that group.
-- USES group_backlog, listed_in
local function waiting_places(id, from, parked)
  local places = {}
  if redis.call('ZSCORE', backlog, id) then
    places[#places + 1] = 'backlog'
  end
  if parked then
    places[#places + 1] = 'backlog:' .. parked
  end
  local unnamed = from:match('^backlog:(.*)$')
  if unnamed and unnamed ~= parked and type(redis.pcall('ZSCORE', group_backlog(unnamed), id)) == 'string' then
    places[#places + 1] = from
  else
    unnamed = nil
  end
  if listed_in(ready)[id] then
    places[#places + 1] = 'ready'
  end
  return places, unnamed
end

-- Is the id in the list of the worker that its record names, or in the one where the caller met it?
-- USES listed_in, processing
local function is_held(id, worker, from)
  local named = worker and listed_in(processing(worker))[id]
  return named or (from:find('^processing:') and listed_in(root .. from)[id])
end

-- Where an id that is not valid is, or 'no place'; nil when nothing is left of it, or when its job has ended and the
-- record expires by itself. `lies` is the place where it waits or is held.
local function misnamed_place(lies, buried, finished, ttl)
  if lies or (buried and ttl ~= -2) then
    return lies or 'dead'
  end
  return (ttl == -1 or (ttl >= 0 and not finished)) and 'no place' or nil
end

-- The violations of an id: a list of { code, where }. `from` is the place where the caller met the id, if the record
-- need not name that place: `processing:<worker>` or `backlog:<group>`; else ''.
--
-- Legitimate, so not reported: an id on the schedule while it is anywhere else (it was scheduled again); an id in two
-- workers' lists, or in one and waiting, until the second `start`; an id in dead and on the schedule, until dispatch.
--
-- No job can run under an id that is not valid, so nothing else is reported about it. A member of the schedule that is
-- an inline job is not the job whose record has that id.
-- USES throttled_in, worker_of, moment_of, recurrence_of, waiting_places, is_held, group_of, held_by_any, seconds,
--      waits_in_vain, is_id, is_inline, misnamed_place, row_of, moving_due, record_key, light_of, job_fields,
--      field_size
local function violations_of(id, from, strays, now)
  local key, found = record_key(id), {}
  local function report(code, where)
    found[#found + 1] = { code, where }
  end
  local size = field_size(id, 'payload')
  if type(size) == 'table' then
    return { { 'record-type', '' } }
  end
  local payload, parked = size > 0, throttled_in(id)
  local run = job_fields(id, 'worker', 'finished', 'outcome', 'due', 'parked', 'recurrence', 'ledger')
  local worker, finished, outcome, due = worker_of(run[1]), run[2], run[3], moment_of(run[4])
  local name, ended_well = recurrence_of(id, run[6]), outcome == 'done' or outcome == 'cancelled'
  local ttl = redis.call('PTTL', key) -- -2: there is no record
  ttl = ttl == -2 and light_of(id) and -1 or ttl
  local scheduled = not is_inline(id) and (redis.call('ZSCORE', schedule, id) or moving_due(id))
  local buried = redis.call('ZSCORE', dead, id)
  local waits, unnamed = waiting_places(id, from, parked)
  local held = is_held(id, not finished and worker, from)
  local lies = waits[1] or (held and 'processing') or (scheduled and 'schedule')
  if not is_id(id) then
    local taken = held or held_by_any(id, strays)
    local place = taken and 'processing' or misnamed_place(lies, buried, finished, ttl)
    if place then
      return { { 'bad-id', place } }
    end
  end
  local places = #waits > 1 and table.concat(waits, ' and ') or (finished and waits[1] and 'finished and ' .. waits[1])
  if places then
    report('two-places', places)
  end
  if run[5] and not parked then
    report('parked', group_of(run[5]) or '')
  end
  if unnamed and payload and #waits == 1 then
    report('unparked', unnamed)
  end
  if not payload and not finished and lies then
    report('no-record', lies)
  elseif ttl == -2 then
    if buried then
      report('dead-without-record', '')
    end
  elseif not finished and not lies and not buried and not held_by_any(id, strays) then
    report(payload and due and 'orphan' or 'unscheduled', due or '')
  elseif buried and ((not finished and lies) or ended_well) then
    report('stale-dead', finished and outcome or lies)
  elseif finished and ttl == -1 and not row_of(run[7]) and not lies and not buried and not held_by_any(id, strays) then
    report('no-ttl', '')
  end
  local late = finished and scheduled and scheduled ~= 'inf' and tonumber(scheduled) > now + ttl / 1000
  if ttl >= 0 and (not finished or late or (buried and not ended_well)) then
    report('record-expires', seconds(now + ttl / 1000))
  end
  if scheduled == 'inf' and name and waits_in_vain(id, name) then
    report('stuck', name)
  end
  return found
end

-- Does the worker run the job, according to its record?
-- USES job_fields
local function runs_here(worker, id)
  local run = job_fields(id, 'worker', 'finished')
  return run[1] == worker and not run[2]
end

-- The fields that `in_flight` should have. `counted` are its entries, as field, value, ...
-- Jobs in the lists of strays may be counted or not: `keep_count` does not see them. So may jobs that were fetched and
-- not started: if one is in two lists, the end of its run in the other list ends the count too, until `start`.
-- USES split_groups, listed_in, processing, runs_here, groups_of
local function right_counts(counted, owners, strays)
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
  local function count(id, groups)
    right[id] = groups
    sum = sum + 1
    for _, group in ipairs({ split_groups(groups) }) do
      right['#' .. group] = (right['#' .. group] or 0) + 1
    end
  end
  for i = 1, #counted, 2 do
    local id = counted[i]
    if not id:find('^[*#]') and (uncounted[id] or tolerated[id]) then
      count(id, counted[i + 1])
      uncounted[id] = nil
    end
  end
  for id, worker in pairs(uncounted) do
    if worker == '' or runs_here(worker, id) then
      count(id, groups_of(id))
    end
  end
  right['*'] = sum
  return right
end

-- The wrong fields of `in_flight`: field, the right value or false, ... It must be counted in one call, so with more
-- than `most` entries: nil, and how many there are.
-- USES in_flight, size_of, processing, right_counts, holders
local function miscounts(strays, most)
  local owners, total = holders(), redis.call('HLEN', in_flight) + redis.call('LLEN', ready)
  for _, worker in ipairs(owners) do
    total = total + size_of('LLEN', processing(worker))
  end
  if total > most then
    return nil, total
  end
  local counted = redis.call('HGETALL', in_flight)
  if #counted == 0 then
    return {} -- nothing needs the count
  end
  local right = right_counts(counted, owners, strays)
  local changes = {}
  for i = 1, #counted, 2 do
    local field, value = counted[i], right[counted[i]]
    if tostring(value) ~= counted[i + 1] then
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

-- Has the group a backlog and no entry in `throttled`, so that it is never reopened ('stranded'), or an entry and no
-- backlog ('throttled')?
-- USES throttled, group_backlog
local function group_violation(group)
  local is_throttled = redis.call('ZSCORE', throttled, group)
  local waits = redis.call('EXISTS', group_backlog(group)) == 1
  if waits ~= (is_throttled and true or false) then
    return waits and 'stranded' or 'throttled'
  end
end
