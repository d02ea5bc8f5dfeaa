#!lua flags=allow-oom
-- cancel: schedule, backlog or ready -> gone. A worker that runs the job is told to stop it.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
-- REPLY  the place where it was; 'processing' = its worker is told, by a message and by its next heartbeat
-- FAILS  MISSING   there is no such job, or it has ended or is dead
-- TWICE  the second call fails with MISSING, or tells the worker again
-- USES   clock, record, acquit, expect, expect_gate, remove_waiting, holder_of, fail, push_reply, recurrence_of,
--        release_waiting, admit, fields_of, unique
--
-- Clients that wait for a reply get it. All jobs of the id end: a run, and a next run that was scheduled meanwhile. The
-- field `stop` in the record makes a run end as cancelled even if its worker dies. Unless the job runs, its id is free
-- for a unique job. If a dead job was scheduled again, it is dead as before.

local now, id = unpack(ARGV, 1, 2)
now = clock(now)
local key = record(id)
local run = fields_of(key, 'worker', 'finished', 'reply', 'recurrence')
local size = redis.call('HSTRLEN', key, 'payload')

expect('ZCARD', dead, leases)
expect_gate()

-- A longer payload is not read here: no running job has one.
local PAYLOAD_READ = 1048576

-- From all places: an id that waits may have been scheduled again.
local place = remove_waiting(id)
if redis.call('ZREM', schedule, id) + redis.call('HDEL', key, 'again') > 0 then
  place = 'schedule'
end
local holder = size > 0 and holder_of(id, run[1])
if holder then
  redis.call('HSET', key, 'stop', '1')
  redis.call('PUBLISH', root .. 'control:' .. holder, id)
  place = 'processing'
elseif not place then
  local why = ': it never existed, has ended, or was cancelled while it waited'
  return fail('MISSING', id .. ' does not wait and does not run' .. why)
end

if not holder then
  redis.call('DEL', unique(id))
end
-- The record of a dead job that was scheduled again stays the dead job's.
if not holder and not redis.call('ZSCORE', dead, id) then
  local good, payload = pcall(cjson.decode, size <= PAYLOAD_READ and redis.call('HGET', key, 'payload') or '')
  if run[3] or (good and type(payload) == 'table' and payload.reply == true) then
    push_reply(id, 'cancelled', 'null', nil, 0)
  end
  redis.call('DEL', key)
  acquit(id)
  local name = recurrence_of(id, run[4])
  if name then
    release_waiting(name, id, now)
  end
end
admit(0, now)
return place
