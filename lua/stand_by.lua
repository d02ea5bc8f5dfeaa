#!lua flags=allow-oom
-- stand_by: moves nothing. Keeps a parent registered that has no worker process, and reports whether the queue needs
-- one. If so, it claims the start: of several parents, one starts a process.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        parent    whose registration
--        lease     number: seconds from now to its end
--        claim     number: seconds for which it claims the start, 0 = it does not
--        owner     the app whose declarations its last process has written, '' = none
--        content   digest of all that it declares
--        program   digest of the names of its tasks, '' = none
-- REPLY  'ready' when a job waits in ready, 'undeclared' when the app's declarations were lost, 'sought' when a task of
--        the app is sought, '' when no process is needed; '1', or '0' when another parent has claimed the
--        start
-- FAILS  none
-- TWICE  the second call finds its own claim
-- USES   clock, seconds, parents, register_program, is_declared, sought_in, starting, milliseconds, size_of,
--        register_member
--
-- A parent registers in `parents`, and not with a lease of a worker: it takes no share of the jobs. A task is sought
-- until a worker that has it sends its first heartbeat, which it does before the claim of its parent ends.

local now, parent, lease, claim, owner, content, program = unpack(ARGV, 1, 7)
now = clock(now)
local ends = now + tonumber(lease)

redis.pcall('ZADD', parents, seconds(ends), parent)
redis.pcall('ZREMRANGEBYSCORE', parents, '-inf', '(' .. seconds(now))
local known = register_program(program, ends)
register_member(parent, program, now, ends)
local reason = ''
if size_of('LLEN', ready) > 0 then
  reason = 'ready'
elseif not (known and is_declared(owner, content)) then
  reason = 'undeclared'
elseif #sought_in(program, now) > 0 then
  reason = 'sought'
end
if reason == '' or tonumber(claim) <= 0 then
  return { reason, '0' }
end
local claimed = redis.call('SET', starting, parent, 'NX', 'PX', milliseconds(math.max(tonumber(claim), 0.001)))
if not claimed and redis.pcall('GET', starting) ~= parent then
  return { reason, '0' }
end
return { reason, '1' }
