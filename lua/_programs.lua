-- The tasks that the workers of a queue have. Workers of different apps, or of different versions of one, may serve the
-- same queue. A program is the digest of the names of an app's tasks.

-- Program -> when the last lease of its workers, and of its parents that stand by, ends.
local programs = root .. 'programs'

-- Task that a worker did not know, while no live worker had it -> when.
local sought = root .. 'sought'

-- Parent that stands by, without a worker process -> when its registration ends.
local parents = root .. 'parents'

-- The claim of a parent that starts a process.
local starting = root .. 'starting'

-- Seconds for which a task counts as sought. A job whose task is unknown is offered again within 36 s.
local SOUGHT_FOR = 60

-- The names of a program's tasks.
local function program_key(program)
  return root .. 'program:' .. program
end

-- The workers of a program -> when the lease of each ends.
local function workers_of(program)
  return root .. 'workers:' .. program
end

-- Note that a program has a worker, or a parent that stands by, until `ends`. Return false if the names of its tasks
-- were lost. They are kept for a day longer, in case the worker is suspended.
-- USES seconds, milliseconds, programs, program_key
local function register_program(program, ends)
  if program == '' then
    return true
  end
  redis.pcall('ZADD', programs, 'GT', seconds(ends), program)
  redis.pcall('ZREMRANGEBYSCORE', programs, '-inf', '(' .. seconds(ends - 86400))
  return redis.pcall('PEXPIRE', program_key(program), milliseconds(86400)) ~= 0
end

-- The tasks of a program that are sought.
-- USES seconds, sought, program_key, SOUGHT_FOR
local function sought_in(program, now)
  local found = {}
  if program ~= '' then
    for _, name in ipairs(redis.pcall('ZRANGE', sought, seconds(now - SOUGHT_FOR), '+inf', 'BYSCORE')) do
      if redis.pcall('SISMEMBER', program_key(program), name) == 1 then
        found[#found + 1] = name
      end
    end
  end
  return found
end

-- Note that a worker of a program has a lease until `ends`: its tasks are not sought any more.
-- USES seconds, milliseconds, sought, workers_of, sought_in
local function register_worker(worker, program, now, ends)
  if program == '' then
    return
  end
  local key = workers_of(program)
  redis.pcall('ZADD', key, seconds(ends), worker)
  redis.pcall('ZREMRANGEBYSCORE', key, '-inf', '(' .. seconds(now))
  redis.pcall('PEXPIRE', key, milliseconds(86400))
  for _, name in ipairs(sought_in(program, now)) do
    redis.pcall('ZREM', sought, name)
  end
end

-- Whether a program has a live worker. One that has ended has no lease any more.
-- USES seconds, workers_of
local function has_worker(program, now)
  for _, worker in ipairs(redis.pcall('ZRANGE', workers_of(program), seconds(now), '+inf', 'BYSCORE')) do
    if (tonumber(redis.pcall('ZSCORE', leases, worker)) or 0) >= now then
      return true
    end
  end
  return false
end

-- Whether Redis has what an app declares; '' = nothing to lose. A key of another type is a refusal of `register`.
-- USES revisions_of
local function is_declared(owner, content)
  return owner == '' or redis.pcall('ZSCORE', revisions_of(owner), content)
end
