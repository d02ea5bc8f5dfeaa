-- Work that is done once: unique jobs and repeated requests.

-- Unique jobs: ids that are taken for some time after a job was enqueued, whatever becomes of that job.
--
-- unique:<id>  string  until when the id is taken, Unix seconds; Redis deletes the key then. If it is not a time, as
--                      other clients may write it, the id is taken as long as the key exists. A key without an expiry
--                      was left by mistake, and takes no id: otherwise it would do so for ever.

local function unique(id)
  return root .. 'unique:' .. id
end

-- Why the id is taken, although its job may have ended and its record may be gone; nil when it is not.
-- USES unique, moment_of
local function still_taken(id, now)
  local text = redis.pcall('GET', unique(id)) -- pcall: a key of another type takes nothing
  if type(text) ~= 'string' or redis.call('PTTL', unique(id)) < 0 then
    return nil
  elseif not moment_of(text) then
    return id .. ' was enqueued before, and is free again when ' .. unique(id) .. ' expires'
  end
  local left = tonumber(text) - now
  return left > 0 and ('%s was enqueued before, and is free again in %.0f s'):format(id, math.ceil(left)) or nil
end

-- Take an id that is free, for `within` seconds from now; '0' = only while its job waits or runs.
-- USES unique, seconds, milliseconds
local function take(id, within, now)
  if within > 0 then
    redis.call('SET', unique(id), seconds(now + within), 'PX', milliseconds(math.max(within, 0.001)))
  else
    redis.call('DEL', unique(id))
  end
end

-- Requests that are done once: a repetition changes nothing and gets the reply of the first.
--
-- idempotency:<key>  string  the digest of the first request of this key, then its reply, separated by spaces: the id
--                            and the due of each of its jobs; for `trigger` the id, and whether it is on the schedule.
--                            Redis deletes it after a day.

-- Seconds for which a key is known.
local REQUEST_KEPT = 86400

local function idempotency(key)
  return root .. 'idempotency:' .. key
end

-- The reply of the first request of this key; nil when there was none.
-- USES idempotency
local function first_reply(key)
  local text = key ~= '' and redis.pcall('GET', idempotency(key)) -- pcall: a key of another type is not a reply
  return type(text) == 'string' and text or nil
end

-- Store the reply of the first request of this key, and return it. `words`: the request's digest, then its reply.
-- USES idempotency, milliseconds, REQUEST_KEPT
local function keep_reply(key, words)
  local text = table.concat(words, ' ')
  redis.call('SET', idempotency(key), text, 'PX', milliseconds(REQUEST_KEPT))
  return text
end

-- The same of a request that schedules the jobs of the rows, whose first argument is `first`, and their number `width`.
-- USES rows, keep_reply
local function keep_dues(key, asked, dues, first, width)
  local words = { asked }
  for id in rows(first, width) do
    words[#words + 1] = id
    words[#words + 1] = dues[#words / 2]
  end
  return keep_reply(key, words)
end
