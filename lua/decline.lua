#!lua flags=allow-oom
-- decline: moves nothing. An idle worker waits no more for a message, since it stops or has no slot. If it was told of
-- a job meanwhile, another one is told.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   worker    who waits no more; '' = one that was told, and did not come: all others are told
-- REPLY  ''
-- FAILS  none
-- TWICE  the second call may tell one more worker, which then finds nothing
-- USES   decline

local worker = unpack(ARGV, 1, 1)

decline(worker)
return ''
