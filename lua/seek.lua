#!lua flags=allow-oom
-- seek: moves nothing. A worker does not know a task: reports whether another worker of the queue does, and notes that
-- the task is sought if none does.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        task      the name
-- REPLY  '1' when a live worker, or a parent that stands by, has the task, else '0'
-- FAILS  none
-- TWICE  the second call notes the same
-- USES   clock, seconds, milliseconds, programs, program_key, who_has, sought, SOUGHT_FOR
--
-- O(n) in the versions of apps that serve the queue. By the note a parent without processes starts one, see
-- `stand_by`. The heartbeat of a worker that has the task removes the note.

local now, task = unpack(ARGV, 1, 2)
now = clock(now)

-- How many names are noted, the latest ones: a producer may invent any number.
local SOUGHT_MOST = 100

local known, has_one = false, false
for _, program in ipairs(redis.pcall('ZRANGE', programs, seconds(now), '+inf', 'BYSCORE')) do
  if redis.pcall('SISMEMBER', program_key(program), task) == 1 then
    local worker, parent = who_has(program, now)
    known, has_one = known or worker or parent, has_one or worker
  end
end
if not has_one and type(redis.pcall('ZADD', sought, seconds(now), task)) == 'number' then
  redis.call('ZREMRANGEBYRANK', sought, 0, -1 - SOUGHT_MOST)
  redis.call('PEXPIRE', sought, milliseconds(SOUGHT_FOR))
end
return known and '1' or '0'
