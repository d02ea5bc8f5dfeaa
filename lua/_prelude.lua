-- The prelude: the names of a queue's keys, the clock, numbers as text, the rows of ARGV, and refusals.
--
-- A script is passed one key, `root`, the prefix `evsched:{q}:`. All other key names are made from it; the hash tag in
-- it keeps them in one Redis Cluster slot. The names that are defined together with `root` stand before every script.
-- Everything else, here and in the other files whose names begin with `_`, stands only before the scripts that need it.

local root = KEYS[1]
local schedule, backlog, ready = root .. 'schedule', root .. 'backlog', root .. 'ready'
local dead, leases = root .. 'dead', root .. 'leases'
local recurrences = root .. 'recurrences'

local function record(id)
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

-- A length of time for PEXPIRE, which refuses numbers over 64 bits: the cap of 1e10 s (317 years) fits.
local function milliseconds(length)
  return string.format('%.0f', math.min(length, 1e10) * 1000)
end

-- The time: '' is Redis's own clock, which is read once in each script; a number is a test's.
local function clock(now)
  if now ~= '' then
    return tonumber(now)
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
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

-- A refusal. INFO errorstats counts it under its code.
local function fail(code, text)
  return redis.error_reply(code .. ' ' .. text)
end

-- Refuse keys of the wrong type before anything is written. `count` is the command that counts the elements of the
-- right type, so it fails on any other.
local function expect(count, ...)
  for _, key in ipairs({ ... }) do
    if type(redis.pcall(count, key)) == 'table' then
      local kind = redis.call('TYPE', key).ok
      error({ err = 'WRONGTYPE ' .. key .. ' is a ' .. kind .. ', which is nothing of evsched: RENAME or DEL it' })
    end
  end
end

-- How many elements a key holds, by the counting command of its type; 0 for a key of another type. For keys of one
-- job, group or worker, whose wrong type must not stop the others.
local function size_of(count, key, ...)
  local size = redis.pcall(count, key, ...)
  return type(size) == 'number' and size or 0
end
