#!lua flags=allow-oom
-- ask: moves nothing. Requests that a job's outcome is pushed to its reply list, for a job scheduled without `reply`.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   id        of the job
-- REPLY  the outcome, '' = not ended; the result, JSON or ''; the reason or ''
-- FAILS  MISSING   no job of that id, its retention is over, or it was cancelled while it waited
--        MOVING    it is on its way to another shard
-- TWICE  the second call changes nothing
-- USES   record, fail, moving_due, IS_MOVING, record_key, field_size

local id = unpack(ARGV, 1, 1)
local run = redis.call('HMGET', record_key(id), 'outcome', 'result', 'reason', 'finished')
if field_size(id, 'payload') == 0 and not run[4] then
  local why = ': it never existed, its retention is over, or it was cancelled while it waited'
  return fail('MISSING', id .. ' has no record' .. why)
end
if run[4] and run[1] and not redis.call('ZSCORE', schedule, id) then
  return { run[1], run[2] or '', run[3] or '' }
end
if moving_due(id) then
  return fail('MOVING', id .. IS_MOVING) -- a mark that is written now might come too late
end
redis.call('HSET', record(id), 'reply', '1')
return { '', '', '' }
