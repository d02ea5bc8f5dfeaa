#!lua flags=allow-oom
-- reopen: schedule -> schedule, due at once: jobs that wait for a named window which was changed or removed.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        window    its name
--        limit     count: how many notes to look at, under 1000
-- REPLY  how many jobs are due now; how many notes are left
-- FAILS  none
-- TWICE  the second call goes on with the next notes
-- USES   clock, seconds, deferred
--
-- The notes are written by `defer`. A note whose job is not on the schedule at that due any more (it was rescheduled,
-- cancelled or has run) is only deleted. Workers, which know the windows, then check them as for any job.

local now, window, limit = unpack(ARGV, 1, 3)
now = clock(now)
local notes = deferred(window)

local back = 0
local found = redis.call('ZRANGE', notes, 0, limit - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local id, due = found[i], found[i + 1]
  if redis.call('ZSCORE', schedule, id) == due and tonumber(due) > now then
    redis.call('ZADD', schedule, 'XX', seconds(now), id)
    back = back + 1
  end
  redis.call('ZREM', notes, id)
end
return { back, redis.call('ZCARD', notes) }
