#!lua
-- backfill: planned times that have passed -> schedule, due now, each once, however often it is asked for. Unless the
-- recurrence allows overlap, one after another.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        name      of the recurrence
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   planned   score: Unix seconds, in order
-- REPLY  how many are requested now; how many were requested before, or have a job; how many have not come yet, or are
--        left to dispatchers, because the recurrence was not moved on past them; how many were left out, because too
--        many wait already; how many wait
-- FAILS  MISSING   no recurrence has that name, or it is retired
-- TWICE  the second call finds all of them requested
-- USES   clock, recurrence, expect, fail, no_recurrence,
--        requests_of, requested_of, rows, request, REQUESTS_MOST, REQUESTS_AT_ONCE, begin_requests_if_free, note_act
--
-- Which planned times ran in their time is not known for longer than their records are kept.

local now, name, act = unpack(ARGV, 1, 3)
now = clock(now)
local requests = requests_of(name)

expect('ZCARD', schedule, recurrences, requests, requested_of(name))
expect('HLEN', recurrence(name))
local next = tonumber(redis.call('ZSCORE', recurrences, name) or '')
if not next then
  return no_recurrence(name)
elseif redis.call('HEXISTS', recurrence(name), 'retired') == 1 then
  return fail('MISSING', name .. ' is stopped: the code no longer declares it')
end

local waiting = redis.call('ZCARD', requests)
-- Runs that wait already begin the next ones when they end.
local at_once = waiting == 0 and REQUESTS_AT_ONCE or 1
local made, known, later, left_out = {}, 0, 0, 0
for planned in rows(4, 1) do
  local moment = tonumber(planned)
  if moment > now or (next > 0 and moment >= next) then
    later = later + 1
  elseif waiting + #made >= REQUESTS_MOST then
    left_out = left_out + 1
  elseif request(name, planned, moment) then
    made[#made + 1] = name .. '@' .. planned
  else
    known = known + 1
  end
end
redis.call('ZREMRANGEBYRANK', requested_of(name), 0, -1 - REQUESTS_MOST)
begin_requests_if_free(name, at_once, now)
note_act(act, #made, made)
return { #made, known, later, left_out, redis.call('ZCARD', requests) }
