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
