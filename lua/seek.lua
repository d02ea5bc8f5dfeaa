#!lua flags=allow-oom
-- seek: moves nothing. Notes that a task is sought, because a worker does not know it, and tells whether another worker
-- of the queue does.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        task      the name
-- REPLY  '1' when a live worker, or a parent that stands by, has the task, else '0'
-- FAILS  none
-- TWICE  the second call notes the same
-- USES   clock, seconds, milliseconds, programs, program_key, sought, SOUGHT_FOR
--
-- O(n) in the versions of apps that serve the queue. By the note a parent without processes starts one, see
-- `stand_by`.

local now, task = unpack(ARGV, 1, 2)
now = clock(now)

-- How many names are noted, the latest ones: a producer may invent any number.
local SOUGHT_MOST = 100

if type(redis.pcall('ZADD', sought, seconds(now), task)) == 'number' then
  redis.call('ZREMRANGEBYRANK', sought, 0, -1 - SOUGHT_MOST)
  redis.call('PEXPIRE', sought, milliseconds(SOUGHT_FOR))
end
local live = redis.pcall('ZRANGE', programs, seconds(now), '+inf', 'BYSCORE')
for _, program in ipairs(live) do
  if redis.pcall('SISMEMBER', program_key(program), task) == 1 then
    return '1'
  end
end
return '0'
