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

-- The workers of a program, and its parents that stand by -> when the registration of each ends.
local function members_of(program)
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

-- Note that a worker of a program, or a parent that stands by, is registered until `ends`.
-- USES seconds, milliseconds, members_of
local function register_member(member, program, now, ends)
  if program == '' then
    return
  end
  local key = members_of(program)
  redis.pcall('ZADD', key, seconds(ends), member)
  redis.pcall('ZREMRANGEBYSCORE', key, '-inf', '(' .. seconds(now))
  redis.pcall('PEXPIRE', key, milliseconds(86400))
end

-- The tasks of a program that has a worker are not sought any more.
-- USES sought_in, sought
local function end_search(program, now)
  for _, name in ipairs(sought_in(program, now)) do
    redis.pcall('ZREM', sought, name)
  end
end

-- Whether a program has a live worker, and whether a parent of it stands by. One that has ended in order has no lease
-- and no registration any more.
-- USES seconds, members_of, parents
local function who_has(program, now)
  local worker, parent = false, false
  for _, member in ipairs(redis.pcall('ZRANGE', members_of(program), seconds(now), '+inf', 'BYSCORE')) do
    worker = worker or (tonumber(redis.pcall('ZSCORE', leases, member)) or 0) >= now
    parent = parent or (tonumber(redis.pcall('ZSCORE', parents, member)) or 0) >= now
  end
  return worker, parent
end

-- Whether Redis has the declarations of an app; '' = it declares nothing. `register` refuses a key of another type.
-- USES revisions_of
local function is_declared(owner, content)
  return owner == '' or redis.pcall('ZSCORE', revisions_of(owner), content)
end
