#!lua flags=allow-oom
-- heartbeat: keeps a worker's lease, and reports whether Redis has lost its declarations. The tasks that it has are not
-- sought any more.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    whose lease
--        lease     number: seconds from now to its end
--        busy      number or '': seconds of the lease that the worker has while it holds jobs, '' = not said. A
--                  worker whose list is not empty gets this lease: it may not know yet what it was handed
--        fresh     '1' = begin a lease, '' = renew one
--        owner     the app whose declarations the worker has written, '' = none
--        content   digest of all that it declares in this queue
--        program   digest of the names of its tasks, '' = none
-- REPLY  '1', or '0' when there was no lease to renew: it was lost, and other workers may have the jobs by now;
--        how many jobs the worker's list holds; ids of jobs that are to stop; '1', or '0' when its
--        declarations were lost, or are to be made again; '1' when it waits for a message, else '0'; now
-- FAILS  none
-- TWICE  the second call renews once more
-- USES   clock, processing, field_of, seconds, register_program, register_member, is_declared, end_search, idle,
--        busy_leases, dead_workers, find_light

local now, worker, lease, busy, fresh, owner, content, program = unpack(ARGV, 1, 8)
now = clock(now)

-- The message that asked the worker to stop a job may have been lost. At most 1 us a job, every few seconds.
local stops, held = {}, redis.call('LRANGE', processing(worker), 0, -1)
find_light(held)
for _, id in ipairs(held) do
  if field_of(id, 'stop') then
    stops[#stops + 1] = id
  end
end

local ends = now + tonumber(#held > 0 and busy ~= '' and busy or lease)
local kept = fresh == '1' or redis.call('ZSCORE', leases, worker)
if kept then
  redis.call('ZADD', leases, seconds(ends), worker)
  redis.pcall('ZREM', dead_workers, worker)
  if busy ~= '' then
    redis.pcall('HSET', busy_leases, worker, busy) -- pcall: the dispatchers then judge the worker by their own lease
  end
end
local known = register_program(program, ends)
register_member(worker, program, now, ends)
end_search(program, now)
local declared = known and is_declared(owner, content)
local waits = type(redis.pcall('ZSCORE', idle, worker)) == 'string'
return { kept and '1' or '0', #held, stops, declared and '1' or '0', waits and '1' or '0', seconds(now) }
