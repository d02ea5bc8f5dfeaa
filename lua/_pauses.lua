-- Pauses of recurrences, by an operator or after failures.
--
-- pauses        zset  name -> when the pause ends, Unix seconds; only of pauses that end by themselves
-- newly_paused  set   names of recurrences that were paused because of failures, which no dispatcher has reported yet
--
-- The record of a paused recurrence has `paused`, since when; `paused_until`, its end; and `paused_why`. Its score is
-- +inf. So a dispatcher that does not know of ends leaves it paused.

local pauses = root .. 'pauses'
local newly_paused = root .. 'newly_paused'

-- Pause a recurrence; `ends` and `why` may be ''. Dispatchers receive an event, and look when the pause ends.
-- USES recurrence, withdraw, pauses, seconds
local function begin_pause(name, ends, why, now)
  local key = recurrence(name)
  withdraw(name)
  redis.call('HDEL', key, 'paused_until', 'paused_why')
  redis.call('HSET', key, 'paused', seconds(now))
  if why ~= '' then
    redis.call('HSET', key, 'paused_why', why)
  end
  redis.pcall('ZREM', pauses, name) -- pcall: the key may be of another type
  if ends ~= '' then
    redis.call('HSET', key, 'paused_until', ends)
    redis.call('ZADD', pauses, ends, name)
  end
  redis.call('ZREM', recurrences, name) -- otherwise a second pause would change nothing, and cause no event
  redis.call('ZADD', recurrences, '+inf', name)
end

-- Pause a recurrence that has failed as often in a row as its `pause_after` allows. Called at the end of a run, where
-- nothing may be refused: a key of another type changes nothing.
-- USES recurrence, made_of, begin_pause, newly_paused
local function pause_if_failing(name, now)
  local found = redis.call('HMGET', recurrence(name), 'pause_after', 'failing', 'paused', 'retired')
  local most, failing = made_of(found[1]), made_of(found[2])
  if most == 0 or failing < most or found[3] or found[4] then
    return
  end
  if type(redis.pcall('ZSCORE', recurrences, name)) == 'string' then
    begin_pause(name, '', failing .. (failing == 1 and ' failure' or ' failures in a row'), now)
    redis.pcall('SADD', newly_paused, name)
  end
end

-- Forget a pause, and the failures before it; return whether there was one. The caller sets the score.
-- USES recurrence, pauses
local function end_pause(name)
  redis.pcall('ZREM', pauses, name)
  redis.call('HDEL', recurrence(name), 'paused_until', 'paused_why', 'failing')
  return redis.call('HDEL', recurrence(name), 'paused') == 1
end
