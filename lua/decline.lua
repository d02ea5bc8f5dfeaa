#!lua flags=allow-oom
-- decline: moves nothing, or ready -> processing. An idle worker stops waiting for a message, since it ends or has no
-- slot. If it was sent an empty one meanwhile, another worker is served.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who stops waiting; '' = one that did not come after its message: all others are served
-- REPLY  '1' = it waited, and gets no message; '0' = it did not: it was sent a message, or was unknown
-- FAILS  none
-- TWICE  the second call may serve one more worker
-- USES   clock, decline

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)

return decline(worker, now) and '1' or '0'
