-- The fields of a job's record, which is untrusted input: each is returned as a valid value, or as nil.
--
-- A program that schedules jobs may write any field of a record, by mistake or on purpose. So apart from the payload,
-- the priority and the group, which dispatch checks, a field reaches a command, a key's name or a reply only through
-- these functions. A producer can set a field but not delete one, and it has no access to workers' lists.

-- The longest valid value of a field that scripts read, in bytes; the payload alone may be longer.
local FIELD_MOST = 512
-- Stands for a value that is longer, which is not read: each MB takes Redis about 5 ms. No function below accepts it.
local UNREAD = '}'

-- One field of a job's record; nil when it is absent or empty, or the record is not a hash.
-- USES record, FIELD_MOST, UNREAD
local function field_of(id, field)
  local key = record(id)
  local size = redis.pcall('HSTRLEN', key, field)
  if type(size) ~= 'number' or size == 0 then
    return nil
  end
  return size > FIELD_MOST and UNREAD or redis.call('HGET', key, field)
end

-- Several fields of a record, in the order of their names; false for an absent one. An error when it is not a hash.
--
-- MEMORY USAGE tells whether the whole record is small; then one HMGET reads the fields. Otherwise each is measured
-- before it is read. The figure is exact if every field is sampled. A record of more than 512 fields is never small,
-- because each field takes 16 bytes or more.
-- USES FIELD_MOST, UNREAD
local function fields_of(key, ...)
  local bytes = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', '512')
  if not bytes or bytes <= 8192 then
    return redis.pcall('HMGET', key, ...)
  end
  local values = {}
  for i, field in ipairs({ ... }) do
    local size = redis.pcall('HSTRLEN', key, field)
    if type(size) ~= 'number' then
      return size
    end
    values[i] = size > FIELD_MOST and UNREAD or redis.call('HGET', key, field)
  end
  return values
end

-- The size of a payload that fields_of returned: 0 when there is none.
-- USES UNREAD
local function payload_size(key, payload)
  return payload == UNREAD and redis.call('HSTRLEN', key, 'payload') or #(payload or '')
end

-- Is this text valid as a job's id?
local function is_id(text)
  return #text <= 200 and text:find('^[%w._:@-]+$') ~= nil
end

-- Unix seconds, as the text that they are. tonumber() would accept '0x10', 'nan' and ' 1', which ZADD or Python refuse.
local function moment_of(text)
  if text and #text < 32 and text:find('^%d+%.?%d*$') then
    -- Up to 1e11, the year 5138. Counting digits is 40 % cheaper than converting to a number.
    return (text:find('.', 1, true) or #text + 1) < 13 and text or nil
  end
  -- As Valkey 9 writes a score that has 17 digits.
  return text and #text < 32 and text:find('^%d%.%d+e%+%d$') and text or nil
end

-- When a job runs again, after its run or its attempt; nil = it does not. A time after the last valid moment means that
-- moment, and a malformed one '0': now.
-- USES moment_of
local function again_of(text)
  if not text or text == 'inf' then
    return text or nil
  elseif text:find('^%d+%.?%d*$') or text:find('^%d%.?%d*e%+%d+$') then
    return moment_of(text) or '99999999999'
  end
  return '0'
end

-- How many attempts were counted. A malformed count means 0.
local function attempt_of(text)
  return text and #text < 10 and text:find('^%d+$') and tonumber(text) or 0
end

-- The name of a worker. A name with `}:` in it would lead to a key that a producer may write.
local function worker_of(text)
  return text and #text <= 200 and text:find('^[%w._:@-]+$') and text or nil
end

local function priority_of(text)
  return text and text:find('^%d$') and tonumber(text) or nil
end

-- The name of a group, '' = no group. A `}` is refused for the same reason as in a worker's name.
local function group_of(text)
  return text and #text <= 200 and not text:find('}', 1, true) and text or nil
end

-- The recurrence that an id is an occurrence of: the id is `<name>@<planned>`.
local function recurrence_of(id, text)
  return text and #text < #id and id:sub(1, #text + 1) == text .. '@' and text or nil
end

-- The id of an occurrence, as a recurrence's record names it; nil when it is not an occurrence of that recurrence.
-- USES recurrence_of
local function occurrence_of(name, id)
  return type(id) == 'string' and recurrence_of(id, name) and id or nil
end

-- How many occurrences a recurrence has made. A malformed count means 0.
local function made_of(text)
  return text and #text < 16 and text:find('^%d+$') and tonumber(text) or 0
end

-- Bounds on what readers get of one record.
-- USES moment_of, again_of, worker_of, group_of, priority_of, attempt_of
local FIELDS_READ, BYTES_READ = 100, 8388608
-- How readers get the fields whose values have a form.
local valid_field = {
  again = again_of,
  worker = worker_of,
  priority = function(text)
    return priority_of(text) and text
  end,
}
for _, name in ipairs({ TIME_FIELDS }) do
  valid_field[name] = moment_of
end
for _, name in ipairs({ GROUP_FIELDS }) do
  valid_field[name] = group_of
end
local function count_of(text)
  return tostring(attempt_of(text))
end
for _, name in ipairs({ COUNT_FIELDS }) do
  valid_field[name] = count_of
end

-- A record for readers, as field, value, ... Malformed values are left out. The short values come first, so if a record
-- exceeds the bounds, the longest are left out, and not the reason, for example. A key that is not a hash reads as an
-- empty record.
-- USES record, BYTES_READ, size_of, FIELDS_READ, valid_field
local function readable_record(id)
  local key, fields, left = record(id), {}, BYTES_READ
  if size_of('HLEN', key) > FIELDS_READ then
    return { 'reason', 'its record has more than ' .. FIELDS_READ .. ' fields: DEL it and schedule the job again' }
  end
  local names, lengths = redis.pcall('HKEYS', key), {}
  for _, field in ipairs(names) do
    lengths[field] = #field + redis.call('HSTRLEN', key, field)
  end
  table.sort(names, function(one, other)
    return lengths[one] < lengths[other]
  end)
  for _, field in ipairs(names) do
    left = left - lengths[field]
    local value = left >= 0 and redis.call('HGET', key, field)
    if value and valid_field[field] then
      value = valid_field[field](value)
    end
    if value then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  return fields
end
