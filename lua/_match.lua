-- Filters: which jobs a command is about. `find` finds them, and the verb that changes one asks again in its own
-- script: so a job that has moved on meanwhile, or has become another one under the same id, stays as it is.
--
-- A filter is a JSON object; all its conditions must hold, and none is required:
--
-- task    the name of the job's task
-- group   the job's group
-- reason  occurs in the job's reason, of which A to Z are compared as a to z
-- error   the class of the exception in the last failed run: the whole name, or its last part
-- failed  true: the last run raised an exception
-- unknown  true: the job was returned by a worker that does not know its task
-- tags    a list: the job has all of these tags
-- arguments  a list of { name, value, position, positions }: the job was given this value by this name; or by position,
--            which is the same for all jobs, or by task
-- after   Unix seconds: the job was created then or later; a job that is dead or finished ended then or later
-- before  Unix seconds: the job was created then or earlier; a job that is dead or finished ended then or earlier

-- Bytes of the longest payload or reason that is searched: four times the default cap of a payload.
local MATCH_MOST = 1048576
-- How many bytes this call has searched.
local bytes_matched = 0

-- The conditions of a filter, and the types of their values.
local CONDITIONS = {
  task = 'string',
  group = 'string',
  reason = 'string',
  error = 'string',
  tags = 'table',
  arguments = 'table',
  after = 'number',
  before = 'number',
}

-- Has a filter the form of one? Otherwise it might fail at one of the jobs, after others were changed.
-- USES CONDITIONS
local function is_filter(filter)
  for name, kind in pairs(CONDITIONS) do
    if filter[name] ~= nil and type(filter[name]) ~= kind then
      return false
    end
  end
  for _, tag in ipairs(filter.tags or {}) do
    if type(tag) ~= 'string' then
      return false
    end
  end
  for _, one in ipairs(filter.arguments or {}) do
    if type(one) ~= 'table' or (one.positions ~= nil and type(one.positions) ~= 'table') then
      return false
    end
  end
  return true
end

-- The filter in a text; nil = '', no filter.
-- USES is_filter, refuse
local function read_filter(text)
  if text == '' then
    return nil
  end
  local good, filter = pcall(cjson.decode, text)
  if not good or type(filter) ~= 'table' or not is_filter(filter) then
    refuse('filter', 'a valid filter')
  end
  return filter
end

-- A field of a record that may be long; '' when it is absent or too long.
-- USES MATCH_MOST, bytes_matched, field_size, whole_field
local function long_field(id, field)
  local size = field_size(id, field)
  if type(size) ~= 'number' or size == 0 or size > MATCH_MOST then
    return ''
  end
  bytes_matched = bytes_matched + size
  return whole_field(id, field)
end

-- A payload as a table, empty when it cannot be read.
local function decoded(text)
  local good, job = pcall(cjson.decode, text)
  return good and type(job) == 'table' and job or {}
end

local function text_or(value, other)
  return type(value) == 'string' and value or other
end

-- The valid ones of a payload's tags, of which there are at most 5.
-- USES text_or
local function tags_of(payload)
  local tags, found = type(payload.tags) == 'table' and payload.tags or {}, {}
  for i = 1, 5 do
    local tag = text_or(tags[i], '')
    if #tag <= 64 and tag:find('^[!-~]+$') and not tag:find(',', 1, true) then
      found[#found + 1] = tag
    end
  end
  return found
end

-- Does a payload have all of these tags?
-- USES tags_of
local function has_tags(payload, wanted)
  local there = {}
  for _, tag in ipairs(tags_of(payload)) do
    there[tag] = true
  end
  for _, tag in ipairs(wanted) do
    if not there[tag] then
      return false
    end
  end
  return true
end

-- Are two values of JSON equal?
local function are_equal(one, other)
  if type(one) ~= 'table' or type(other) ~= 'table' then
    return one == other
  end
  for key, value in pairs(one) do
    if not are_equal(value, other[key]) then
      return false
    end
  end
  for key in pairs(other) do
    if one[key] == nil then
      return false
    end
  end
  return true
end

-- May a payload's `redact` mean an argument? It should be a list of names and positions. A name that is not in kwargs
-- may be that of any argument in args; a position beyond args, that of any in kwargs. jobs/redaction.py has this rule.
local function is_redacted(payload, name, position)
  local redact = payload.redact
  if type(redact) ~= 'table' then
    return redact and redact ~= cjson.null
  end
  local named = type(payload.kwargs) == 'table' and payload.kwargs or {}
  local many = type(payload.args) == 'table' and #payload.args or 0
  local by_name = named[name] ~= nil
  for key, one in pairs(redact) do
    if type(key) ~= 'number' or type(one) ~= 'string' or one == name or one == tostring(position) then
      return true
    end
    local is_position = #one < 10 and one:find('^[1-9]%d*$')
    if one == '' or (one:find('^%d+$') and not is_position) then
      return true
    elseif is_position and by_name and tonumber(one) > many then
      return true
    elseif not is_position and not by_name and named[one] == nil then
      return true
    end
  end
  return false
end

-- The redacted arguments that workers have declared, by queue and task, as far as they were read.
local redacted_in = {}

-- Does a worker declare that an argument of a task is redacted? '0' stands for all.
-- USES redactions, redacted_in
local function is_declared_redacted(task, name, position)
  local known = root .. task
  if redacted_in[known] == nil then
    local text = redis.pcall('HGET', redactions, task)
    local good, names = pcall(cjson.decode, type(text) == 'string' and text or '[]')
    redacted_in[known] = good and type(names) == 'table' and names or {}
  end
  for _, one in pairs(redacted_in[known]) do
    if one == name or one == position or one == '0' then
      return true
    end
  end
  return false
end

-- Does a payload have an argument of this value? The values of redacted arguments cannot be searched for.
-- USES is_redacted, is_declared_redacted, text_or, are_equal
local function has_argument(payload, wanted)
  local named, listed = payload.kwargs, payload.args
  local position = wanted.position or (wanted.positions or {})[payload.task]
  if is_redacted(payload, wanted.name, position) then
    return false
  elseif is_declared_redacted(text_or(payload.task, ''), wanted.name, tostring(position)) then
    return false
  end
  if type(named) == 'table' and named[wanted.name] ~= nil then
    return are_equal(named[wanted.name], wanted.value)
  end
  return position and type(listed) == 'table' and listed[position] ~= nil and are_equal(listed[position], wanted.value)
end

-- Does a payload have all of these arguments?
-- USES has_argument
local function has_arguments(payload, wanted)
  for _, one in ipairs(wanted) do
    if not has_argument(payload, one) then
      return false
    end
  end
  return true
end

-- Does a payload's text have all the texts that a filter names? If it has escaped characters, it may.
local function may_name(payload, filter)
  if payload:find('\\', 1, true) then
    return true
  end
  for _, tag in ipairs(filter.tags or {}) do
    if not payload:find(tag, 1, true) then
      return false
    end
  end
  for _, one in ipairs(filter.arguments or {}) do
    if type(one.value) == 'string' and not payload:find(one.value, 1, true) then
      return false
    end
  end
  return not filter.task or payload:find(filter.task, 1, true) ~= nil
end

-- The Unix seconds from which a job's age counts; nil when that is unknown. A due time in the future is not an age yet,
-- and neither is a score near 0, which means "now".
-- USES moment_of
local function age_from(place, score, created, due)
  if place == 'dead' or place == 'finished' then
    return tonumber(score)
  end
  due = tonumber(place == 'schedule' and score or moment_of(due) or '')
  return tonumber(moment_of(created) or '') or (due and due >= 1 and due or nil)
end

-- The properties of an inline job that filters compare. Its member is its payload.
-- USES MATCH_MOST, bytes_matched, decoded, text_or, age_from
local function inline_job(member, score)
  bytes_matched = bytes_matched + #member
  local job = decoded(#member <= MATCH_MOST and member or '')
  return { payload = job, group = text_or(job.group, ''), since = age_from('schedule', score) }
end

-- The properties of a job with a record that filters compare; nil if the record is not a hash. If another client has
-- used the id of a job that has ended, the record has only the payload and the group of the new job. If the id was
-- replaced while it runs, the schedule has the next job, and the other places have the one that runs.
-- USES group_of, moment_of, age_from, is_next, job_fields
local function recorded_job(id, place, score)
  if place == 'schedule' and is_next(id) then
    local next = job_fields(id, 'next_group', 'next_created', 'next_by')
    local since = age_from(place, score, next[2] or nil)
    local known =
      { field = 'next_payload', group = group_of(next[1] or nil) or '', created = moment_of(next[2] or nil) }
    known.by, known.error, known.location, known.reason, known.since = next[3] or '', '', '', '', since
    return known
  end
  local fields = job_fields(id, 'group', 'created', 'by', 'due', 'finished', 'error', 'location', 'unknown')
  if fields.err then
    return nil
  end
  local group, created, by, due, finished, error, location, unknown = unpack(fields)
  local stale = finished and place ~= 'dead' and place ~= 'finished'
  created = not stale and created or nil
  return {
    field = 'payload',
    group = group_of(group or nil) or '',
    created = moment_of(created),
    by = not stale and by or '',
    error = not stale and error or '',
    location = not stale and location or '',
    unknown = not stale and unknown or '',
    since = age_from(place, score, created, due or nil),
    stale = stale,
  }
end

-- Is this the class of an error, `requests.exceptions.Timeout`, or its name alone, `Timeout`?
local function is_class(error, name)
  return error == name or error:sub(-#name - 1) == '.' .. name
end

-- The job of an id in a place, if it matches, else nil. Its payload is decoded only if it may have what the filter
-- names: to decode takes ten times as long as to search.
-- USES is_inline, inline_job, recorded_job, is_class, long_field, decoded, may_name, has_tags,
-- has_arguments
local function matching_job(id, place, score, filter)
  local job
  if is_inline(id) then
    job = inline_job(id, score)
  else
    job = recorded_job(id, place, score)
  end
  if not job or (filter.group and job.group ~= filter.group) then
    return nil
  elseif filter.before and (not job.since or job.since > filter.before) then
    return nil
  elseif filter.after and (not job.since or job.since < filter.after) then
    return nil
  elseif filter.error and not is_class(job.error or '', filter.error) then
    return nil
  elseif filter.failed and (job.error or '') == '' then
    return nil
  elseif filter.unknown and (job.unknown or '') == '' then
    return nil
  end
  if filter.reason then
    job.reason = job.reason or (job.stale and '' or long_field(id, 'reason'))
    if not job.reason:lower():find(filter.reason, 1, true) then
      return nil
    end
  end
  if (filter.task or filter.tags or filter.arguments) and not job.payload then
    local payload = long_field(id, job.field)
    job.payload = may_name(payload, filter) and decoded(payload) or {}
  end
  if filter.task and job.payload.task ~= filter.task then
    return nil
  elseif filter.tags and not has_tags(job.payload, filter.tags) then
    return nil
  elseif filter.arguments and not has_arguments(job.payload, filter.arguments) then
    return nil
  end
  return job
end

-- Does a job wait that matches? A job that a worker has fetched does not wait.
-- USES waiting_place, matching_job
local function match_waiting(id, filter)
  local score = redis.call('ZSCORE', schedule, id)
  local place = score and 'schedule' or waiting_place(id)
  return place and matching_job(id, place, score, filter) ~= nil
end

-- Is a job dead that matches?
-- USES matching_job
local function match_dead(id, filter)
  local score = redis.call('ZSCORE', dead, id)
  return score and matching_job(id, 'dead', score, filter) ~= nil
end

-- The ids of the dead jobs that `revive` and `drop` move, in the rows from `first` on: with a filter, jobs that are
-- dead and match, and that have a record if `needs_record`. Without one, if rows name jobs that are not dead or lack
-- that record, returns nil and the refusal, which names the first of them. `since`: number or nil: of a call that is
-- sent again, when it was sent first. Jobs that have died since then died once more after that: it has moved them, and
-- the third value is their ids.
-- USES rows, fail, match_dead, record
local function pick_dead(first, filter, needs_record, since)
  local ids, seen, wrong, moved = {}, {}, {}, {}
  for id in rows(first, 1) do
    local died, unfit = redis.call('ZSCORE', dead, id), nil
    if not filter and not died then
      unfit = ' is not dead'
    elseif needs_record and redis.call('EXISTS', record(id)) == 0 then
      unfit = ' has no record, so it cannot be revived: drop it'
    end
    if not seen[id] and unfit and not filter then
      wrong[#wrong + 1] = id .. unfit
    elseif not seen[id] and not unfit and (not filter or match_dead(id, filter)) then
      local picked = since and tonumber(died) >= since and moved or ids
      picked[#picked + 1] = id
    end
    seen[id] = true -- it may be named twice
  end
  if #wrong > 0 then
    local text = table.concat(wrong, '; ', 1, math.min(#wrong, 5))
    if #wrong > 5 then
      text = text .. '; and ' .. #wrong - 5 .. ' more'
    end
    return nil, fail('MISSING', text .. (#ids > 0 and '; the other jobs were left as they are' or ''))
  end
  return ids, nil, moved
end
