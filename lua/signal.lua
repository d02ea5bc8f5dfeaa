#!lua flags=allow-oom
-- signal: moves nothing, or schedule -> schedule: a job that waits for the signal is due now. A signal that comes
-- before the job waits for it is kept with the job.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
--        signal    its name: 1 to 100 of A-Z a-z 0-9 . _ : @ -
--        value     JSON, in one line
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  'due' = the job waited for it; 'kept' = it does not wait for it yet; 'known' = a signal of that name has come
--        before, which stays, and nothing was written
-- FAILS  MISSING   there is no such job, it has ended or is dead, or its wait for this signal is over
--        MOVING    it is on its way to another shard
-- TWICE  the second call replies 'known', and changes nothing
-- USES   clock, seconds, record, fail, refuse, expect, place_of, field_of, moving_due, IS_MOVING, kept_text, find_line,
--        awaited_until, SIGNALS_MOST, check_signal, worker_of, holds, note_act

local now, id, signal, value, act = unpack(ARGV, 1, 5)
now = clock(now)
check_signal(signal)
if value == '' or value:find('\n', 1, true) then
  refuse('value', 'JSON in one line')
end

expect('ZCARD', schedule, dead)
local worker, finished = field_of(id, 'worker'), field_of(id, 'finished')
local place = redis.pcall('HSTRLEN', record(id), 'payload') ~= 0 and place_of(id, worker, finished)
if moving_due(id) then
  return fail('MOVING', id .. IS_MOVING)
elseif place == 'dead' then
  return fail('MISSING', id .. ' is dead: revive it, then send the signal')
elseif finished then
  return fail('MISSING', id .. ' has ended, so it takes no signal')
elseif not place then
  return fail('MISSING', id .. ' has no record: it never existed, has ended, or waits as an inline job')
end
local text, ends = kept_text(id, 'signals'), awaited_until(id, signal)
if find_line(text, signal) then
  return 'known'
elseif ends and ends <= now then
  return fail('MISSING', id .. "'s wait for the signal " .. signal .. ' was over before it came')
end
text = text .. signal .. '\t' .. seconds(now) .. '\t' .. value .. '\n'
if #text > SIGNALS_MOST then
  refuse('value', 'short enough: the signals of a job have at most ' .. SIGNALS_MOST .. ' bytes')
end
redis.call('HSET', record(id), 'signals', text)
local reply = 'kept'
if field_of(id, 'waiting') == signal and not holds(worker_of(worker), id) and redis.call('ZSCORE', schedule, id) then
  redis.call('ZADD', schedule, 'XX', seconds(now), id)
  redis.call('HDEL', record(id), 'waiting')
  reply = 'due'
end
note_act(act, 1, { id })
return reply
