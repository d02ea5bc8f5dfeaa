#!lua
-- trigger: a recurrence's run that was not planned -> schedule, due now; or, if an occurrence runs that it must not
-- overlap with, once that has ended.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        name      of the recurrence
--        planned   Unix seconds: the time that stands in the id, which the caller has read from Redis's clock
-- REPLY  '1' = it is on the schedule; '0' = it waits for an occurrence that has not ended, or is an earlier call's
-- FAILS  MISSING   no recurrence has that name, or it is retired
-- TWICE  the second call finds it requested
-- USES   clock, recurrence, expect, fail, no_recurrence,
--        requests_of, requested_of, request, REQUESTS_MOST, begin_requests_if_free, record
--
-- A paused recurrence can be triggered: a pause stops what nobody asks for.

local now, name, planned = unpack(ARGV, 1, 3)
now = clock(now)

expect('ZCARD', schedule, recurrences, requests_of(name), requested_of(name))
expect('HLEN', recurrence(name))
if not redis.call('ZSCORE', recurrences, name) then
  return no_recurrence(name)
elseif redis.call('HEXISTS', recurrence(name), 'retired') == 1 then
  return fail('MISSING', name .. ' is stopped: the code no longer declares it')
end
if request(name, planned, 0) then
  redis.call('ZREMRANGEBYRANK', requested_of(name), 0, -1 - REQUESTS_MOST)
  begin_requests_if_free(name, 1, now)
end
return redis.call('EXISTS', record(name .. '@' .. planned)) == 1 and '1' or '0'
