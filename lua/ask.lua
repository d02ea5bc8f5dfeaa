#!lua flags=allow-oom
-- ask: moves nothing. Asks that a job's end be pushed to its reply list, for one that was scheduled without `reply`.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   id        of the job
-- REPLY  the outcome, '' = not ended; the result, JSON or ''; the reason or ''
-- FAILS  MISSING   no job of that id, or its retention has ended
-- TWICE  the second call changes nothing

local id = unpack(ARGV, 1, 1)
local key = record(id)
local run = redis.call('HMGET', key, 'payload', 'outcome', 'result', 'reason', 'finished')
if not run[1] and not run[5] then
  return fail('MISSING', id .. ' has no record: it never was, or its retention has ended')
end
if run[5] and not redis.call('ZSCORE', schedule, id) then
  return { run[2], run[3] or '', run[4] or '' }
end
redis.call('HSET', key, 'reply', '1')
return { '', '', '' }
