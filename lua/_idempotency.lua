-- Requests that are done once: a repetition changes nothing and gets the reply of the first.
--
-- idempotency:<key>  string  what the first request of this key asked for, then what its reply says, separated by
--                            spaces: the id and the due of each of its jobs; for `trigger` the id, and whether it is
--                            on the schedule. Redis deletes it after a day.

-- Seconds for which a key is known.
local REQUEST_KEPT = 86400

local function idempotency(key)
  return root .. 'idempotency:' .. key
end

-- The reply of the first request of this key; nil when there was none.
-- USES idempotency
local function first_reply(key)
  local text = key ~= '' and redis.pcall('GET', idempotency(key)) -- pcall: a key of another type is no reply
  return type(text) == 'string' and text or nil
end

-- Store the reply of the first request of this key, and return it. `words`: what it asked for, and what its reply says.
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
