-- Requested runs: planned times that an operator wants run now, by `trigger` and `backfill`.
--
-- requests:<name>   zset  planned time -> its place in the order: 0 = before all others, else the planned time itself
-- requested:<name>  zset  planned time -> the same; all that were requested, so that none is requested twice
--
-- A planned time waits in `requests` until its job may be made. Unless the recurrence allows overlap, they run one
-- after another, and beside no other occurrence. The field `requested` of the recurrence is the id of the latest job.

-- How many requested runs of a recurrence may wait, and how many are remembered, the latest planned times: about 100
-- bytes each. To delete so many takes 3 ms.
local REQUESTS_MOST = 20000
-- How many requested runs are on the schedule or run at a time, if overlap is allowed.
local REQUESTS_AT_ONCE = 100

local function requests_of(name)
  return root .. 'requests:' .. name
end

local function requested_of(name)
  return root .. 'requested:' .. name
end

-- Request a planned time; `order` is its place. Returns whether it was neither requested before nor has a job.
-- USES requested_of, record, requests_of
local function request(name, planned, order)
  if redis.call('ZADD', requested_of(name), 'NX', planned, planned) == 0 then
    return false
  elseif redis.call('EXISTS', record(name .. '@' .. planned)) == 1 then
    return false
  end
  redis.call('ZADD', requests_of(name), order, planned)
  return true
end

-- Forget the requests of a recurrence that is deleted.
-- USES requests_of, requested_of
local function forget_requests(name)
  redis.call('DEL', requests_of(name), requested_of(name))
end

-- Make jobs of the next requested runs, at most `most`, and one if overlap is not allowed. The caller has checked that
-- no occurrence of such a recurrence is on its way or runs. While the recurrence is paused, only what was triggered
-- runs; nothing, when it is retired.
-- USES requests_of, recurrence, occurrence_of, moment_of, record, write_record, seconds, whole_seconds
local function begin_requests(name, most, now)
  local requests, key = requests_of(name), recurrence(name)
  if redis.call('EXISTS', requests) == 0 then
    return
  end
  local found = redis.pcall('HMGET', key, 'payload', 'priority', 'group', 'overlap', 'requested', 'paused', 'retired')
  -- pcall: a run ends here, so nothing may be refused because a key is of another type.
  if found.err or found[7] or type(redis.pcall('ZSCORE', recurrences, name)) ~= 'string' then
    return
  end
  local turn = occurrence_of(name, found[5])
  if found[4] ~= 'allow' then
    most = 1
    if turn and redis.call('ZSCORE', schedule, turn) then
      return
    end
  end
  local last = found[6] and 0 or '+inf'
  while most > 0 do
    -- An error, when the key is of another type, has no elements either.
    local planned = redis.pcall('ZRANGE', requests, '-inf', last, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not planned then
      return
    end
    redis.call('ZREM', requests, planned)
    local id = name .. '@' .. planned
    if moment_of(planned) and redis.call('EXISTS', record(id)) == 0 then
      redis.call('ZADD', schedule, seconds(now), id)
      -- A group of their own, so that other occurrences do not wait behind a long backfill.
      write_record(id, found[1] or '', found[2] or '', found[3] or '@requested', whole_seconds(now))
      redis.call('HSET', record(id), 'recurrence', name, 'planned', planned)
      redis.call('HSET', key, 'requested', id)
      most = most - 1
    end
  end
end

-- The same, unless an occurrence is on its way or runs that a requested run must not overlap with.
-- USES recurrence, occurrence_of, unended, begin_requests
local function begin_requests_if_free(name, most, now)
  local found = redis.pcall('HMGET', recurrence(name), 'overlap', 'current')
  local current = not found.err and occurrence_of(name, found[2])
  if found[1] == 'allow' or not (current and unended(current)) then
    begin_requests(name, most, now)
  end
end
