#!lua flags=allow-oom
-- rewind: schedule -> gone, occurrences that were scheduled by a clock which has been set back since.
-- Groups that wait for a time of that clock are looked at again.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        ahead     number: seconds: a recurrence that was moved on by a clock further ahead than this is reset
--        offset    count: how many of the recurrences beyond that to skip
--        limit     count: how many to look at
-- REPLY  how many were looked at; the names of the recurrences that recur from now on
-- FAILS  none
-- TWICE  the second call finds their scores at 0, or moved on by the right clock; groups are looked at again
-- USES   clock, seconds, recurrence, throttled, restart
--
-- A recurrence's record has the time at which it was last moved on. If that is ahead of now, the clock was set back
-- since, and the recurrence would make no occurrences until the clock reaches that time again.

local now, ahead, offset, limit = unpack(ARGV, 1, 4)
now = clock(now)
local latest = now + tonumber(ahead)

local found = redis.call('ZRANGE', recurrences, '(' .. seconds(latest), '+inf', 'BYSCORE', 'LIMIT', offset, limit)
local wrong = {}
for _, name in ipairs(found) do
  local state = redis.pcall('HMGET', recurrence(name), 'moved', 'paused', 'retired')
  if not state.err and (tonumber(state[1]) or 0) > latest and not (state[2] or state[3]) then
    wrong[#wrong + 1] = name
  end
end
-- This read also refuses a key of the wrong type before anything is written.
redis.call('ZCARD', schedule)

-- A group that its rate holds back waits for a moment, which may be one of the clock that was ahead. Looking at it too
-- early costs little.
local GROUPS_MOST = 1000
local groups = redis.pcall('ZRANGE', throttled, '(' .. seconds(now), '(+inf', 'BYSCORE', 'LIMIT', 0, GROUPS_MOST)
for _, group in ipairs(groups) do -- none, when the key is of another type
  redis.call('ZADD', throttled, 0, group)
end
if #groups > 0 then
  redis.call('PUBLISH', root .. 'gate', seconds(now))
end

for _, name in ipairs(wrong) do
  restart(name)
end
return { #found, wrong }
