-- The prelude: the names of a queue's keys, the clock, numbers as text, the rows of ARGV, and refusals; the fields of
-- records; the places of jobs.
--
-- A script is passed one key, `root`, the prefix `evsched:{q}:`. All other key names are made from it; the hash tag in
-- it keeps them in one Redis Cluster slot. The names that are defined together with `root` stand before every script.
-- Everything else, here and in the other files whose names begin with `_`, stands only before the scripts that need it.

local root = KEYS[1]
local schedule, backlog, ready = root .. 'schedule', root .. 'backlog', root .. 'ready'
local dead, leases = root .. 'dead', root .. 'leases'
local recurrences = root .. 'recurrences'

local function record_key(id)
  return root .. 'job:' .. id
end

local function processing(worker)
  return root .. 'processing:' .. worker
end

local function recurrence(name)
  return root .. 'recurrence:' .. name
end

-- The backlog of jobs that a group's own limits hold back.
local function group_backlog(group)
  return backlog .. ':' .. group
end

-- Numbers leave a script as text: tostring() keeps 14 digits, and a returned number loses its fraction.
local function seconds(number)
  return string.format('%.6f', number)
end

-- A length of time for PEXPIRE, which refuses numbers over 64 bits: 0 to 1e10 s (317 years).
local function milliseconds(length)
  return string.format('%.0f', math.max(0, math.min(length, 1e10)) * 1000)
end

-- Refuse a call because of an argument, before anything is written.
local function refuse(argument, form)
  error({ err = ('ERR the argument %s is not %s, so nothing was written'):format(argument, form) })
end

-- An argument as a number. One that is not, or not of this kind, is refused: 'count' = a whole number of at most 16
-- digits; 'score' = as ZADD takes it, which may be infinite, but not '0x10' or ' 1', as tonumber() accepts. The linker
-- places such a check before each script for each argument whose kind its header names.
-- USES refuse
local function check_number(name, text, kind)
  local value = tonumber(text)
  local valid = value and math.abs(value) < math.huge -- not nan either
  if kind == 'count' then
    valid = #text <= 16 and text:find('^%d+$')
  elseif kind == 'score' then
    valid = valid and text:find('^[%d.eE+-]+$') or text:find('^[+-]?inf$')
  end
  if not valid then
    refuse(name, 'a valid ' .. (kind or 'number'))
  end
  return value
end

-- The time: '' is Redis's own clock, which is read once in each script; a number is a test's.
-- USES check_number
local function clock(now)
  if now ~= '' then
    return check_number('now', now)
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

-- Walk ARGV from `first` on, in rows of `width` values. The linker has each script check that they are whole.
local function rows(first, width)
  local at = first - width
  return function()
    at = at + width
    if ARGV[at] then
      return unpack(ARGV, at, at + width - 1)
    end
  end
end

-- Read some queues. `parts`: one for each, or for a slice of it. `read(part)` returns the reply about it, and how much
-- work that took. Returns the replies in the order of the parts; false for a queue that Redis refuses to read, but the
-- error if it is the only one. The last parts are left out after more than `most` work, so that a call is short however
-- many there are: the caller calls again for them.
local function read_parts(parts, most, read)
  if #parts == 1 then
    return { (read(parts[1])) }
  end
  local replies, work = {}, 0
  for i, part in ipairs(parts) do
    local good, reply, more = pcall(read, part)
    replies[i] = good and reply
    work = work + (good and more or 0)
    if work > most then
      break
    end
  end
  return replies
end

-- Read some queues, whose names ARGV has from `first` on. `read(prefix)` returns the reply about the queue with this
-- prefix of its keys, and how many other keys it has read for it: see read_parts.
-- USES rows, read_parts
local MORE_KEYS_MOST = 2000
local function read_queues(first, read)
  local prefixes = {}
  for name in rows(first, 1) do
    prefixes[#prefixes + 1] = 'evsched:{' .. name .. '}:'
  end
  return read_parts(prefixes, MORE_KEYS_MOST, read)
end

-- A refusal. INFO errorstats counts it under its code.
local function fail(code, text)
  return redis.error_reply(code .. ' ' .. text)
end

-- Refuse keys of the wrong type before anything is written. `count` is the command that counts the elements of the
-- right type, so it fails on any other. `first_sizes`: how many elements each had.
local first_sizes = {}
local function expect(count, ...)
  for _, key in ipairs({ ... }) do
    local size = redis.pcall(count, key)
    if type(size) == 'table' then
      local kind = redis.call('TYPE', key).ok
      error({ err = 'WRONGTYPE ' .. key .. ' is a ' .. kind .. ', which is nothing of evsched: RENAME or DEL it' })
    end
    first_sizes[key] = size
  end
end

-- How many elements a key holds, by the counting command of its type; 0 for a key of another type. For keys of one
-- job, group or worker, whose wrong type must not stop the others.
local function size_of(count, key, ...)
  local size = redis.pcall(count, key, ...)
  return type(size) == 'number' and size or 0
end

-- The fields of a job's record, which is untrusted input: each is returned as a valid value, or as nil.
--
-- A program that schedules jobs may write any field of a record, by mistake or on purpose. So apart from the payload,
-- the priority and the group, which dispatch checks, a field reaches a command, a key's name or a reply only through
-- these functions. A producer can set a field but not delete one, and it has no access to workers' lists.

-- The longest valid value of a field that scripts read, in bytes; the payload alone may be longer.
local FIELD_MOST = 512
-- Stands for a value that is longer, which is not read: each MB takes Redis about 5 ms. No function below accepts it.
local UNREAD = '}'

-- The size of a field of a job's record, in bytes, 0 when it is absent; an error when the record is not a hash.
-- USES light_of, record_key
local function field_size(id, field)
  local job = light_of(id)
  return job and job[field] and #job[field] or redis.pcall('HSTRLEN', record_key(id), field)
end

-- A field of a job's record, however long it is.
-- USES light_of, record_key
local function whole_field(id, field)
  local job = light_of(id)
  return job and job[field] or redis.call('HGET', record_key(id), field)
end

-- One field of a job's record; nil when it is absent or empty, or the record is not a hash.
-- USES field_size, whole_field, FIELD_MOST, UNREAD
local function field_of(id, field)
  local size = field_size(id, field)
  if type(size) ~= 'number' or size == 0 then
    return nil
  end
  return size > FIELD_MOST and UNREAD or whole_field(id, field)
end

-- Several fields of a record or of another hash, in the order of their names; false for an absent one. An error when it
-- is not a hash.
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
    values[i] = size > FIELD_MOST and UNREAD or (size > 0 and redis.call('HGET', key, field))
  end
  return values
end

-- Several fields of a job's record, as `fields_of`.
-- USES light_of, fields_of, record_key
local function job_fields(id, ...)
  local job, values = light_of(id), fields_of(record_key(id), ...)
  for i, name in ipairs(job and not values.err and { ... } or {}) do
    values[i] = job[name] or values[i]
  end
  return values
end

-- The size of a payload that job_fields returned: 0 when there is none.
-- USES UNREAD, record_key
local function payload_size(id, payload)
  return payload == UNREAD and redis.call('HSTRLEN', record_key(id), 'payload') or #(payload or '')
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

-- The redacted arguments that workers have declared: task, a list of names as JSON, ...; none if the key is of another
-- type, or some program has written many.
-- USES size_of
local redactions = root .. 'redactions'
local function declared_redactions()
  local found = size_of('HLEN', redactions) <= 1000 and redis.pcall('HGETALL', redactions) or {}
  return found.err and {} or found
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
-- USES light_of, record_key, BYTES_READ, size_of, FIELDS_READ, valid_field
local function readable_record(id)
  local key, fields, left, job = record_key(id), {}, BYTES_READ, light_of(id) or {}
  for field, value in pairs(job) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
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
    local value = left >= 0 and not job[field] and redis.call('HGET', key, field)
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

-- Places: where a job is, and how a due job is taken out of the place where it waits.

-- Whether a queue, by the prefix of its keys, has any place, light job, worker, recurrence, limit, chore or batch. A
-- queue that Redis refuses to read has.
local function has_any(prefix)
  return redis.pcall(
    'EXISTS',
    prefix .. 'schedule',
    prefix .. 'backlog',
    prefix .. 'throttled',
    prefix .. 'ready',
    prefix .. 'light',
    prefix .. 'dead',
    prefix .. 'leases',
    prefix .. 'dead_workers',
    prefix .. 'moving',
    prefix .. 'recurrences',
    prefix .. 'pauses',
    prefix .. 'limits',
    prefix .. 'parents',
    prefix .. 'ends',
    prefix .. 'chores',
    prefix .. 'batches'
  ) ~= 0
end

-- busy_leases  hash  worker -> the seconds of its lease while it holds jobs, as the worker says. Dispatchers judge it
--                    by that: the lease in Redis may have changed since the worker read it.
local busy_leases = root .. 'busy_leases'

-- dead_workers  zset  worker that died -> until when its list is watched: a worker that hangs may have a BLMOVE waiting
--                     in Redis, which moves a job into the list after its jobs were put back
local dead_workers = root .. 'dead_workers'

-- The workers that may hold jobs: all with a lease, and all that died a moment ago.
-- USES dead_workers
local function holders()
  local found, died = redis.call('ZRANGE', leases, 0, -1), redis.pcall('ZRANGE', dead_workers, 0, -1)
  for _, worker in ipairs(died) do
    found[#found + 1] = worker
  end
  return found
end

-- Does the worker hold the job? Only its list proves it: a record may contain anything.
-- USES processing
local function holds(worker, id)
  return worker and type(redis.pcall('LPOS', processing(worker), id)) == 'number'
end

-- The worker that holds the job in its list, or nil; `named` is the one in the record. A job that was fetched and not
-- started yet has no worker in its record: then all lists are searched, O(workers).
-- USES worker_of, holds, holders
local function holder_of(id, named)
  named = worker_of(named)
  if holds(named, id) then
    return named
  end
  for _, worker in ipairs(holders()) do
    if worker ~= named and holds(worker, id) then
      return worker
    end
  end
end

-- The group in whose backlog the job waits, and its order there; nil when it is in none.
-- USES group_of, field_of, group_backlog
local function throttled_in(id)
  local group = group_of(field_of(id, 'parked'))
  local score = group and redis.pcall('ZSCORE', group_backlog(group), id)
  if type(score) == 'string' then
    return group, score
  end
end

-- Delete what describes jobs that have left: a group's entry in `throttled` once its backlog is empty, and the state of
-- the fair queueing once no job waits.
-- USES group_backlog, throttled, fair
local function tidy(group)
  if group and redis.call('EXISTS', group_backlog(group)) == 0 then
    redis.call('ZREM', throttled, group)
  end
  if redis.call('EXISTS', backlog, throttled) == 0 then
    redis.call('DEL', fair)
  end
end

-- Where a due job waits: 'backlog', 'ready' or nil.
-- USES throttled_in
local function waiting_place(id)
  if redis.call('ZSCORE', backlog, id) or throttled_in(id) then
    return 'backlog'
  end
  return redis.call('LPOS', ready, id) and 'ready' or nil
end

-- Remove a due job from where it waits. Returns that place, or nil.
-- USES field_of, throttled_in, record, group_backlog, tidy, leave
local function remove_waiting(id)
  local place
  local parked = field_of(id, 'parked')
  local group = parked and throttled_in(id)
  if group then
    redis.call('ZREM', group_backlog(group), id)
    tidy(group)
    place = 'backlog'
  elseif redis.call('ZREM', backlog, id) == 1 then
    tidy()
    place = 'backlog'
  elseif redis.call('LREM', ready, 1, id) == 1 then
    leave(id)
    place = 'ready'
  end
  if place and parked then
    redis.call('HDEL', record(id), 'parked')
  end
  return place
end

-- Return jobs that had passed the gate to the backlog, before all others of their priority and in their order.
-- USES priority_of, field_of, STRIDE, leave
local function return_to_backlog(ids)
  for i, id in ipairs(ids) do
    local priority = priority_of(field_of(id, 'priority')) or 5
    redis.call('ZADD', backlog, 'NX', -priority * STRIDE + i / (#ids + 1), id)
    leave(id)
  end
end

-- The place of a job and its score there; nil when it is nowhere. A job that moves to another shard counts as on the
-- schedule. Processing is asked before the schedule: an id that
-- runs may be scheduled again already. `worker` and `finished` are fields of its record.
-- USES holds, worker_of, waiting_place, throttled_in, holder_of, moving_due
local function place_of(id, worker, finished)
  if holds(worker_of(worker), id) then
    return 'processing'
  end
  -- In this order: a dead job that was scheduled again waits.
  for _, place in ipairs({ 'schedule', 'dead' }) do
    local score = redis.call('ZSCORE', root .. place, id)
    if score then
      return place, score
    end
  end
  local due = moving_due(id)
  if due then
    return 'schedule', due
  end
  local place = waiting_place(id)
  if place == 'backlog' then
    local _, score = throttled_in(id)
    return place, score or redis.call('ZSCORE', backlog, id)
  end
  -- Last, a job that a worker has fetched and not started yet.
  return place or (finished and 'finished') or (holder_of(id, worker) and 'processing')
end

-- When the job of an id is due, or was; now if that is unknown.
-- USES moment_of, field_of, seconds, moving_due
local function known_due(id, now)
  return redis.call('ZSCORE', schedule, id) or moving_due(id) or moment_of(field_of(id, 'due')) or seconds(now)
end

-- Moves between the shards of a queue, each of which is a queue with keys in another slot: a batch of jobs at a time.
--
-- moving   hash  member of the schedule -> its due, for each job of the batch that has left the schedule and may have
--                arrived at the other queue or not; '*' -> the batch's number, its token, since when it moves and the
--                name of the other queue
-- arrived  hash  another queue -> JSON: the number and the token of the last batch that came from it, and a list of the
--                jobs that could not come, because their ids were taken here
--
-- At most one batch leaves a queue at a time, and its number is higher than that of the one before. So the queue that
-- receives batches need remember only the last one: a call of an earlier one, however late, has a lower number. The
-- token, which is random, tells two batches apart that have the same number, because Redis's clock was set back.

local moving, arrived = root .. 'moving', root .. 'arrived'

-- The text after the id in a refusal, code MOVING.
local IS_MOVING = ' is being moved to another shard: try again'

-- The due of a job that moves to another queue; nil when it does not. pcall: a key of another type has no jobs.
-- USES moving
local function moving_due(member)
  local due = redis.pcall('HGET', moving, member)
  return type(due) == 'string' and due or nil
end

-- The batch that leaves this queue: number, token, since when, and where it goes; nil when there is none.
-- USES moving_due
local function moving_batch()
  return (moving_due('*') or ''):match('^(%d+) (%S+) (%S+) (%S+)$')
end

-- Is a job of this id anywhere else than on the schedule? `worker` and `due` are fields of its record: only a job that
-- was dispatched before can be in a worker's list, and only for those all lists are searched, O(workers).
-- USES waiting_place, holder_of
local function lies_elsewhere(id, worker, due)
  return redis.call('ZSCORE', dead, id) or waiting_place(id) or ((worker or due) and holder_of(id, worker))
end

-- Turn to another queue: from now on, the names of keys are those of it. A script that turns has no other names of keys
-- than these, and writes nothing.
-- USES moving, dead_workers, redactions, light, light_jobs, recorded, more_light
local function turn_to(queue)
  root = 'evsched:{' .. queue .. '}:'
  schedule, backlog, ready = root .. 'schedule', root .. 'backlog', root .. 'ready'
  dead, leases, recurrences = root .. 'dead', root .. 'leases', root .. 'recurrences'
  moving, dead_workers, redactions = root .. 'moving', root .. 'dead_workers', root .. 'redactions'
  light, light_jobs, recorded, more_light = root .. 'light', {}, {}, nil
end

-- Jobs that wait for a named window.
--
-- deferred:<window>  zset  id -> its due. A note is a hint: it is valid while the job is on the schedule at that due.

local function deferred(window)
  return root .. 'deferred:' .. window
end

-- Note that a job waits for a window; two notes that have passed are deleted. pcall: a note that cannot be written must
-- not stop the deferral.
-- USES deferred, seconds, milliseconds
local function note_deferred(window, id, due, now)
  local notes = deferred(window)
  if type(redis.pcall('ZADD', notes, due, id)) ~= 'number' then
    return
  end
  for _, old in ipairs(redis.call('ZRANGE', notes, '-inf', '(' .. seconds(now), 'BYSCORE', 'LIMIT', 0, 2)) do
    redis.call('ZREM', notes, old)
  end
  local last = tonumber(redis.call('ZRANGE', notes, -1, -1, 'WITHSCORES')[2])
  if last then
    redis.call('PEXPIRE', notes, milliseconds(math.max(0, last - now) + 60))
  end
end
