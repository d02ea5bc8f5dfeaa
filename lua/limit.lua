#!lua flags=allow-oom
-- limit: moves nothing itself. Sets or removes limits, and admits the jobs that they now allow.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
-- ROWS   field     concurrency, rate or burst; with `:<group>` behind it that of a group; weight:<group>
--        value     a number, '' = no such limit
-- REPLY  all limits as field, value, ...
-- FAILS  none
-- TWICE  the second call sets the same
-- USES   clock, expect_gate, rows, limits, throttled, read_policy, admit, seconds
--
-- Jobs that have passed stay in flight: a lower concurrency takes effect once enough of them have ended. Without rows
-- it only reads.

local now = unpack(ARGV, 1, 1)
now = clock(now)

expect_gate()
local changed = false
for field, value in rows(2, 2) do
  if value == '' then
    redis.call('HDEL', limits, field)
  else
    redis.call('HSET', limits, field, value)
  end
  local group = field:match('^%l+:(.*)$')
  if group then
    redis.call('ZADD', throttled, 'XX', 0, group)
  end
  changed = true
end
if changed then
  read_policy()
  admit(0, now)
  -- A sleeping dispatcher knows only the old limits.
  redis.call('PUBLISH', root .. 'gate', seconds(now))
end
return redis.call('HGETALL', limits)
