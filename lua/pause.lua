#!lua flags=allow-oom
-- pause: ready -> backlog, and closes the gate until `resume`, or until a moment. Runs go on; jobs that fall due wait
-- in the backlog.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        limit     count: how many at most, under 1000
--        ends      score or '': seconds, when the gate opens again by itself; '' = it does not
--        why       a sentence for operators, or ''
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  since when the queue is paused, seconds; how many went back to the backlog; how many are still ready
-- FAILS  none
-- TWICE  the second call keeps the first moment. Its end and its sentence take the place of the first
-- USES   clock, expect_gate, is_paused, end_queue_pause, limits, seconds, return_to_backlog, moment_of, note_act
--
-- The jobs that were ready are at the front of the backlog, in their order. A sleeping dispatcher does not know
-- when the pause ends.

local now, limit, ends, why, act = unpack(ARGV, 1, 5)
now = clock(now)
expect_gate()

if not is_paused(now) then
  end_queue_pause() -- a pause that is over
end
redis.call('HSETNX', limits, 'paused', seconds(now))
for field, value in pairs({ paused_until = ends, paused_why = why }) do
  if value ~= '' then
    redis.call('HSET', limits, field, value)
  else
    redis.call('HDEL', limits, field)
  end
end
local ids = redis.call('LRANGE', ready, 0, ('%d'):format(limit - 1))
return_to_backlog(ids)
redis.call('LTRIM', ready, #ids, -1)
if ends ~= '' then
  redis.call('PUBLISH', root .. 'gate', ends)
end
note_act(act)
return { moment_of(redis.call('HGET', limits, 'paused')) or seconds(now), #ids, redis.call('LLEN', ready) }
