-- Names that are taken for some time, whatever becomes of the jobs: ids of unique jobs; requests that are done once.
--
-- unique:<id>       string  until when the id is taken, Unix seconds; Redis deletes the key then. If it is not a time,
--                           as other clients may write it, the id is taken as long as the key exists.
-- unique:/<digest>  string  a request with an Idempotency-Key; no id has a slash. After the time, what it asked for and
--                           what its reply says, separated by spaces: the id and the due of each of its jobs; for
--                           `trigger` the id, and whether it is on the schedule.
--
-- A key without an expiry was left by mistake, and takes no name: otherwise it would do so for ever.

-- Seconds for which a request is known.
local REQUEST_KEPT = 86400

local function unique(name)
  return root .. 'unique:' .. name
end

-- The value stored under a name that is taken; nil when it is free.
-- USES unique
local function claim_of(name)
  local text = redis.pcall('GET', unique(name)) -- pcall: a key of another type takes nothing
  return type(text) == 'string' and redis.call('PTTL', unique(name)) >= 0 and text or nil
end

-- Why the id is taken, although its job may have ended and its record may be gone; nil when it is not.
-- USES unique, claim_of, moment_of
local function still_taken(id, now)
  local text = claim_of(id)
  if not text then
    return nil
  elseif not moment_of(text) then
    return id .. ' was enqueued before, and is free again when ' .. unique(id) .. ' expires'
  end
  local left = tonumber(text) - now
  return left > 0 and ('%s was enqueued before, and is free again in %.0f s'):format(id, math.ceil(left)) or nil
end

-- Why a job of this id cannot be enqueued; nil or false when it can. `within`: of a unique job; '' = it is not unique.
-- USES still_taken, light_of, record_key, place_of, field_of
local function refusal_of(id, within, now)
  local taken = within ~= '' and still_taken(id, now)
  local is_there = light_of(id) or redis.call('EXISTS', record_key(id)) == 1
  local place = is_there and place_of(id, field_of(id, 'worker'), field_of(id, 'finished'))
  if place == 'dead' then
    return (within == '' or taken) and id .. ' is dead: revive or drop it'
  elseif place and place ~= 'finished' then
    return id .. ' has not ended yet'
  end
  return taken
end

-- Take a name that is free, for `within` seconds from now; 0 = only while its job waits or runs. `more`: text stored
-- after the time.
-- USES unique, seconds, milliseconds
local function take(name, within, now, more)
  if within > 0 then
    redis.call('SET', unique(name), seconds(now + within) .. (more or ''), 'PX', milliseconds(math.max(within, 0.001)))
  else
    redis.call('DEL', unique(name))
  end
end

-- The reply of the first request of this key; nil when there was none.
-- USES claim_of
local function first_reply(key)
  local text = key ~= '' and claim_of('/' .. key)
  return text and text:match(' (.*)') or nil
end

-- Store the reply of the first request of this key, and return it. `words`: its digest, and its reply.
-- USES take, REQUEST_KEPT
local function keep_reply(key, words, now)
  local text = table.concat(words, ' ')
  take('/' .. key, REQUEST_KEPT, now, ' ' .. text)
  return text
end

-- The same of a request that schedules the jobs of the rows, whose first argument is `first`, and their number `width`.
-- USES rows, keep_reply
local function keep_dues(key, asked, dues, first, width, now)
  local words = { asked }
  for id in rows(first, width) do
    words[#words + 1] = id
    words[#words + 1] = dues[#words / 2]
  end
  return keep_reply(key, words, now)
end
