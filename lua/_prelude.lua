-- Stands before every verb: the names of the places, the clock, refusal, and the ends of a job.
-- Behind it stand _limits.lua and _gate.lua, before every verb too.
-- One key is passed, the root of the queue's keys `evsched:{q}:`; all other names are made from it, and the
-- hash tag keeps them in one Redis Cluster slot.

local root = KEYS[1]
local schedule, backlog, ready = root .. 'schedule', root .. 'backlog', root .. 'ready'
local dead, leases = root .. 'dead', root .. 'leases'
local recurrences = root .. 'recurrences'

-- The dead set is bounded, so that a broken producer cannot fill Redis: the oldest beyond either bound go.
local DEAD_MOST = 100000
local DEAD_AGE = 180 * 86400
-- How long the record of a job is kept that ends without a worker to say how long, in seconds: a task's default.
local RETENTION = 300

local function record(id)
  return root .. 'job:' .. id
end

local function processing(worker)
  return root .. 'processing:' .. worker
end

local function recurrence(name)
  return root .. 'recurrence:' .. name
end

-- Numbers leave as text: tostring() keeps 14 digits, and a returned number loses its fraction.
local function seconds(number)
  return string.format('%.6f', number)
end

-- A length of time as PEXPIRE takes it. It refuses what does not fit 64 bits: 1e10 s, 317 years, does.
local function milliseconds(length)
  return string.format('%.0f', math.min(length, 1e10) * 1000)
end

-- '' is Redis's own clock, read once per script; a number is a test's.
local function clock(now)
  if now ~= '' then
    return tonumber(now)
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

-- A field of a job's record, nil when it is absent or the record is not a hash.
local function field_of(id, field)
  local value = redis.pcall('HGET', record(id), field)
  return type(value) == 'string' and value or nil
end

-- A record is written by whoever may schedule jobs: any field of it, by a slip or on purpose. So what it says beyond
-- payload, priority and group is read by the functions that follow alone, and nothing else of it reaches a command, a
-- key's name or a reply. A producer can set a field and cannot take one away, and it cannot touch a worker's list.

-- Unix seconds as the text that they are, nil when they are none that a calendar knows. tonumber() takes '0x10', 'nan'
-- and ' 1', which ZADD or Python refuse.
local function moment_of(text)
  if text and #text < 32 and text:find('^%d+%.?%d*$') then
    -- Up to 1e11, the year 5138: 40 % cheaper than to make it a number.
    return (text:find('.', 1, true) or #text + 1) < 13 and text or nil
  end
  return nil
end

-- When an id runs again after its run: nil = it does not, '0' = at once, for what is no moment.
local function again_of(text)
  return text and (text == 'inf' and text or moment_of(text) or '0') or nil
end

-- How many attempts were counted: 0 for what is no count.
local function attempt_of(text)
  return text and #text < 10 and text:find('^%d+$') and tonumber(text) or 0
end

-- A job that workers held when they died is a suspect: how many they were, and how many of those runs are not known to
-- have begun. The field has both numbers; anything else makes no suspect.
local function suspicion_of(text)
  local deaths, doubts = (text or ''):match('^(%d%d?%d?) (%d%d?%d?)$')
  return tonumber(deaths or 0), tonumber(doubts or 0)
end

-- The name of a worker, nil for what can be none: with `}:` in it, it would lead to a key that a producer may write.
local function worker_of(text)
  return text and #text <= 200 and text:find('^[%w._:@-]+$') and text or nil
end

-- A priority, nil for what is none.
local function priority_of(text)
  return text and text:find('^%d$') and tonumber(text) or nil
end

-- The name of a group, nil for what can be none, for the same reason; '' is no group.
local function group_of(text)
  return text and #text <= 200 and not text:find('}', 1, true) and text or nil
end

-- The recurrence that an id is an occurrence of: the id is `<name>@<planned>`.
local function recurrence_of(id, text)
  return text and #text < #id and id:sub(1, #text + 1) == text .. '@' and text or nil
end

-- How many a key holds by its type's command, 0 when it is of another type: that costs the one whose name it has.
local function size_of(count, key)
  local size = redis.pcall(count, key)
  return type(size) == 'number' and size or 0
end

-- How those who look are told the fields that have a form.
local told_as = {
  due = moment_of,
  started = moment_of,
  finished = moment_of,
  planned = moment_of,
  awaited = moment_of,
  again = again_of,
  worker = worker_of,
  parked = group_of,
  group = group_of,
  priority = function(text)
    return priority_of(text) and text
  end,
  attempt = function(text)
    return tostring(attempt_of(text))
  end,
}
-- How many fields, and bytes of them, those who look are told of one job.
local FIELDS_TOLD, BYTES_TOLD = 100, 8388608

-- What a record says for those who look: field, value, ...; what is no value of its field is left out, and what is
-- beyond the bounds. A record that is not a hash says nothing.
local function told(id)
  local key, fields, left = record(id), {}, BYTES_TOLD
  if size_of('HLEN', key) > FIELDS_TOLD then
    return { 'reason', 'its record has more than ' .. FIELDS_TOLD .. ' fields: DEL it and schedule the job again' }
  end
  for _, field in ipairs(redis.pcall('HKEYS', key)) do
    left = left - #field - redis.call('HSTRLEN', key, field)
    local value = left >= 0 and redis.call('HGET', key, field)
    if value and told_as[field] then
      value = told_as[field](value)
    end
    if value then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  return fields
end

-- Does the worker hold the job? Its list says so; the record may say anything.
local function holds(worker, id)
  return worker and type(redis.pcall('LPOS', processing(worker), id)) == 'number'
end

-- Refuse keys of the wrong type before anything is written. `count` is the command that counts what one of the right
-- type holds.
local function expect(count, ...)
  for _, key in ipairs({ ... }) do
    if type(redis.pcall(count, key)) == 'table' then
      local kind = redis.call('TYPE', key).ok
      error({ err = 'WRONGTYPE ' .. key .. ' is a ' .. kind .. ', which is nothing of evsched: RENAME or DEL it' })
    end
  end
end

-- A refusal. INFO errorstats counts it under its code.
local function fail(code, text)
  return redis.error_reply(code .. ' ' .. text)
end

-- Walk ARGV from `first` on, in rows of `width` values.
local function rows(first, width)
  local at = first - width
  return function()
    at = at + width
    if ARGV[at] then
      return unpack(ARGV, at, at + width - 1)
    end
  end
end

-- Write what a client says of a job; '' is not said.
local function write_record(id, payload, priority, group)
  local fields = { 'payload', payload }
  if priority ~= '' then
    fields[#fields + 1] = 'priority'
    fields[#fields + 1] = priority
  end
  if group ~= '' then
    fields[#fields + 1] = 'group'
    fields[#fields + 1] = group
  end
  redis.call('HSET', record(id), unpack(fields))
end

-- Tell who waits how the job ended. `result` is JSON text. The list lives as long as the record would, and at
-- least 10 s, so that a waiter that comes late or reconnects still finds it.
local function answer(id, outcome, result, reason, retention)
  local text = '{"id":"' .. id .. '","outcome":"' .. outcome .. '","result":' .. result
  if reason then
    text = text .. ',"reason":' .. cjson.encode(reason)
  end
  local reply = root .. 'reply:' .. id
  -- A key of another type in its place: nobody can wait on it, and the job must end all the same.
  if type(redis.pcall('RPUSH', reply, text .. '}')) == 'number' then
    redis.call('PEXPIRE', reply, milliseconds(math.max(retention, 10)))
  end
end

-- Count more of what came of a recurrence, whose key is a hash. What is no count there begins anew: a refused HINCRBY
-- would keep a job from its end.
local function tally(name, field, more)
  if type(redis.pcall('HINCRBY', recurrence(name), field, more)) ~= 'number' then
    redis.call('HSET', recurrence(name), field, more)
  end
end

-- The id of an occurrence in its recurrence's record; nil for any other, which is a job that is not the recurrence's.
local function occurrence_of(name, id)
  return type(id) == 'string' and recurrence_of(id, name) and id or nil
end

-- An occurrence of a recurrence is out of the way: let the one go that waits for its end.
local function release(name)
  local waiting = occurrence_of(name, redis.pcall('HGET', recurrence(name), 'waiting'))
  if waiting then
    redis.call('ZADD', schedule, 'XX', moment_of(field_of(waiting, 'planned')) or '0', waiting)
  end
end

-- A job has ended for good, by whatever verb. If it is an occurrence, its recurrence counts it.
local function note_end(id, outcome, now)
  local run = redis.call('HMGET', record(id), 'recurrence', 'due', 'started')
  local name, due, started = recurrence_of(id, run[1]), moment_of(run[2]), moment_of(run[3])
  local key = recurrence(name or '')
  if not name or redis.call('TYPE', key).ok ~= 'hash' then
    return
  end
  tally(name, 'runs', 1)
  redis.call('HSET', key, 'last_id', id, 'last_outcome', outcome, 'last_finished', seconds(now))
  if due and started then
    redis.call('HSET', key, 'last_lateness', seconds(started - due))
  end
  release(name)
end

-- Put a job into the dead set; `outcome` is 'dead' or 'expired'. The caller takes it out of the place where it was,
-- afterwards.
local function bury(id, outcome, reason, now)
  note_end(id, outcome, now)
  redis.call('HSET', record(id), 'outcome', outcome, 'reason', reason, 'finished', seconds(now))
  redis.call('HDEL', record(id), 'traceback') -- of an earlier run; bury writes that of the last
  redis.call('PERSIST', record(id))
  redis.call('ZADD', dead, seconds(now), id)
  local oldest = redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')
  if redis.call('ZCARD', dead) > DEAD_MOST or tonumber(oldest[2]) < now - DEAD_AGE then
    if not redis.call('ZSCORE', schedule, oldest[1]) then
      redis.call('DEL', record(oldest[1]))
    end
    redis.call('ZREM', dead, oldest[1])
  end
end

-- The dead jobs that revive and drop are to move: those in the rows from `first` on, or without rows the oldest that
-- died up to `before` ('' = no bound). On a row that is not dead: nil, and the refusal.
local function pick_dead(first, before, limit)
  local ids = {}
  for id in rows(first, 1) do
    if not redis.call('ZSCORE', dead, id) then
      return nil, fail('MISSING', id .. ' is not dead')
    end
    ids[#ids + 1] = id
  end
  if #ids == 0 then
    ids = redis.call('ZRANGE', dead, '-inf', before == '' and '+inf' or before, 'BYSCORE', 'LIMIT', 0, limit)
  end
  return ids
end

-- Is run (id, attempt) this worker's, by a record that does not name them both as they are? Its caller has seen the id
-- in the worker's list, which is the proof: a run that was taken away is in no list, or in another's. What is left to
-- tell apart is a newer run of the same worker: its attempt is another, or is not counted yet, and then the record
-- names no worker. Anything else was written over by somebody, and must not keep the run from its end.
local function runs_despite(worker, id, attempt, named, counted)
  if not named then
    return false
  elseif named ~= worker and (counted ~= attempt or holds(worker_of(named), id) or field_of(id, 'finished')) then
    return false
  end
  return counted == attempt or attempt_of(counted) == 0
end

-- Does run (id, attempt), which is in this worker's list, belong to it by its record? A record that somebody replaced
-- (pcall) says no, and keeps no other run of the batch from its end.
local function runs(worker, id, attempt)
  local run = redis.pcall('HMGET', record(id), 'worker', 'attempt')
  return (run[1] == worker and run[2] == attempt) or runs_despite(worker, id, attempt, run[1], run[2])
end

-- Take what is of a job that has ended, and of its runs, out of its record: the id is used again.
local function clear_ended(id)
  redis.call('HDEL', record(id), 'outcome', 'result', 'reason', 'finished', 'attempt', 'worker', 'started')
  redis.call('HDEL', record(id), 'reply', 'stop', 'progress', 'awaited', 'planned', 'begun', 'suspect', 'traceback')
end

-- Make a job a suspect.
local function suspect(id, deaths, doubts)
  redis.call('HSET', record(id), 'suspect', math.min(deaths, 999) .. ' ' .. math.min(doubts, 999))
end

-- Count runs that had not been counted, or take back the count of one.
local function count_attempts(id, more)
  redis.call('HSET', record(id), 'attempt', math.max(0, attempt_of(field_of(id, 'attempt')) + more))
end

-- The death of its worker, or of the process that ran it alone, is the job's own doing: its doubtful runs count too.
local function convict(id)
  local deaths, doubts = suspicion_of(field_of(id, 'suspect'))
  count_attempts(id, doubts)
  suspect(id, deaths + 1, 0)
end

-- The run has ended, and its id was scheduled again meanwhile: make the record that of the next run. `again` is
-- the due of one that was dispatched during the run.
local function renew(id, again)
  redis.call('HDEL', record(id), 'worker', 'attempt', 'started', 'again', 'reply', 'stop', 'progress', 'planned')
  redis.call('HDEL', record(id), 'begun', 'suspect', 'traceback')
  if again then
    redis.call('ZADD', schedule, 'LT', again_of(again), id)
  end
end

-- A job that was to stop has ended: cancelled. Its record is kept, or is the next run's when its id was scheduled
-- again. The caller takes it out of the place where it was, afterwards.
local function abort(id, reason, retention, reply, now)
  note_end(id, 'cancelled', now)
  local extra = redis.call('HMGET', record(id), 'reply', 'again')
  if reply == '1' or extra[1] then
    answer(id, 'cancelled', 'null', reason, retention)
  end
  if extra[2] or redis.call('ZSCORE', schedule, id) then
    renew(id, extra[2])
  else
    redis.call('HSET', record(id), 'outcome', 'cancelled', 'reason', reason, 'finished', seconds(now))
    redis.call('HDEL', record(id), 'traceback')
    redis.call('PEXPIRE', record(id), milliseconds(retention))
  end
end

-- The worker that holds the job in its list, or nil. One that took it and has not started it yet is not named in the
-- record: then all lists are looked at, O(workers).
local function holder_of(id, named)
  named = worker_of(named)
  if holds(named, id) then
    return named
  end
  for _, worker in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    if worker ~= named and holds(worker, id) then
      return worker
    end
  end
end
