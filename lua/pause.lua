#!lua flags=allow-oom
-- pause: ready -> backlog, and closes the gate until `resume`. What runs goes on; what falls due waits in the backlog.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        limit     how many at most, under 1000
-- REPLY  since when the queue is paused, seconds; how many went back to the backlog; how many are still ready
-- FAILS  none
-- TWICE  the second call keeps the first moment
-- USES   clock, expect_gate, limits, seconds, return_to_backlog, moment_of
--
-- The jobs that were ready are at the front of the backlog, in their order.

local now, limit = unpack(ARGV, 1, 2)
now = clock(now)
expect_gate()

redis.call('HSETNX', limits, 'paused', seconds(now))
local ids = redis.call('LRANGE', ready, 0, limit - 1)
return_to_backlog(ids)
redis.call('LTRIM', ready, #ids, -1)
return { moment_of(redis.call('HGET', limits, 'paused')) or seconds(now), #ids, redis.call('LLEN', ready) }
