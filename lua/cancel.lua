#!lua flags=allow-oom
-- cancel: schedule, backlog or ready -> gone.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   id        of the job
-- REPLY  the place where it was
-- FAILS  MISSING   no job of that id waits: it has ended, is dead, or never was
--        RUNNING   a worker holds it
-- TWICE  the second call fails with MISSING
--
-- Who waits for a reply is told. A run of the same id that is under way goes on; its next run is what is cancelled.

local id = unpack(ARGV, 1, 1)
local key = record(id)
local run = redis.call('HMGET', key, 'worker', 'finished', 'reply', 'payload')
local running = run[1] and not run[2] and redis.call('LPOS', processing(run[1]), id)

-- These reads also refuse a key of the wrong type before anything is written.
redis.call('ZCARD', schedule)
redis.call('ZCARD', backlog)
redis.call('ZCARD', dead)

-- From all of them: an id that waits in one may have been scheduled again.
local place
if redis.call('LREM', ready, 1, id) == 1 then
  place = 'ready'
end
if redis.call('ZREM', backlog, id) == 1 then
  place = 'backlog'
end
if redis.call('ZREM', schedule, id) + redis.call('HDEL', key, 'again') > 0 then
  place = 'schedule'
end
if not place and running then
  return fail('RUNNING', id .. ' is held by worker ' .. run[1])
elseif not place then
  return fail('MISSING', id .. ' is not on the schedule, in the backlog or ready')
end

-- The record of a dead job that was scheduled again stays the dead job's.
if not running and not redis.call('ZSCORE', dead, id) then
  local good, payload = pcall(cjson.decode, run[4] or '')
  if run[3] or (good and type(payload) == 'table' and payload.reply == true) then
    answer(id, 'cancelled', 'null', nil, 0)
  end
  redis.call('DEL', key)
end
admit(0)
return place
