#!lua flags=no-writes
-- look: moves nothing. Where a job is, and its record, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
-- REPLY  now; the place, '' = there is no such job; its score there, or ''; the record as field, value, ...
-- FAILS  none
-- TWICE  it only reads

local now, id = unpack(ARGV, 1, 2)
now = seconds(clock(now))
local key = record(id)
local run = redis.call('HMGET', key, 'worker', 'finished', 'payload')
local fields = redis.call('HGETALL', key)

-- A run comes before the schedule: an id that runs may be scheduled again already.
if run[1] and not run[2] and redis.call('LPOS', processing(run[1]), id) then
  return { now, 'processing', '', fields }
end
for place, zset in pairs({ schedule = schedule, backlog = backlog, dead = dead }) do
  local score = redis.call('ZSCORE', zset, id)
  if score then
    return { now, place, score, fields }
  end
end
if redis.call('LPOS', ready, id) then
  return { now, 'ready', '', fields }
end
if run[2] then
  return { now, 'finished', '', fields }
end
-- A worker took it and has not counted the attempt yet.
return { now, run[3] and 'processing' or '', '', fields }
