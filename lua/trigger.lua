#!lua
-- trigger: a recurrence's run that was not planned -> schedule, due now; or, if an occurrence runs that it must not
-- overlap with, once that has ended.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        name      of the recurrence
--        planned   score: Unix seconds: the time that stands in the id, which the caller has read from Redis's clock
--        key       of a request that is done once: the digest of its Idempotency-Key; '' = it has none
--        asked     with a `key`: the digest of the request; not compared here
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  '1' = it is on the schedule; '0' = it waits for an occurrence that has not ended, or is an earlier call's.
--        With a `key` one text, that of the first request of this key: its `asked`, the id of the run, and '1' or '0',
--        separated by spaces
-- FAILS  MISSING   no recurrence has that name, or it is retired
-- TWICE  the second call finds it requested. With a `key` it writes nothing and returns the reply of the first
-- USES   clock, recurrence, expect, fail, no_recurrence,
--        requests_of, requested_of, request, REQUESTS_MOST, begin_requests_if_free, record,
--        first_reply, keep_reply, note_act
--
-- A paused recurrence can be triggered: a pause stops only the planned runs.

local now, name, planned, key, asked, act = unpack(ARGV, 1, 6)
now = clock(now)
local first = first_reply(key)
if first then
  return first
end

expect('ZCARD', schedule, recurrences, requests_of(name), requested_of(name))
expect('HLEN', recurrence(name))
if not redis.call('ZSCORE', recurrences, name) then
  return no_recurrence(name)
elseif redis.call('HEXISTS', recurrence(name), 'retired') == 1 then
  return fail('MISSING', name .. ' is stopped: the code no longer declares it')
end
local id = name .. '@' .. planned
if request(name, planned, 0) then
  redis.call('ZREMRANGEBYRANK', requested_of(name), 0, -1 - REQUESTS_MOST)
  begin_requests_if_free(name, 1, now)
  note_act(act, 1, { id })
end
local begun = redis.call('EXISTS', record(id)) == 1 and '1' or '0'
return key == '' and begun or keep_reply(key, { asked, id, begun }, now)
