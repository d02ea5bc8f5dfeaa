#!lua flags=allow-oom
-- decline: moves nothing. An idle worker stops waiting for a message, since it ends or has no slot. If it was sent one
-- meanwhile, another worker gets one.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   worker    who stops waiting; '' = one that did not come after its message: all others get one
-- REPLY  ''
-- FAILS  none
-- TWICE  the second call may send a message to one more worker, which then finds nothing
-- USES   decline

local worker = unpack(ARGV, 1, 1)

decline(worker)
return ''
