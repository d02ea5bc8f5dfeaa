#!lua flags=allow-oom
-- resume: opens the gate that `pause` closed.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  since when the queue was paused, seconds; '' = it was not
-- FAILS  none
-- TWICE  the second call finds it open
-- USES   clock, expect_gate, is_paused, policy, end_queue_pause, admit, seconds, moment_of, note_act

local now, act = unpack(ARGV, 1, 2)
now = clock(now)

expect_gate()
local since = is_paused(now) and policy.paused
end_queue_pause()
admit(0, now)
-- A sleeping dispatcher does not know when a rate that was closed too opens.
redis.call('PUBLISH', root .. 'gate', seconds(now))
if since then
  note_act(act)
end
return since and (moment_of(since) or seconds(now)) or ''
