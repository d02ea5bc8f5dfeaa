-- The jobs in flight, which have passed the gate and not ended. They are counted only while a limit needs it.
--
-- in_flight  hash  id -> the groups in which it counts, with a `}` between them; `*` -> how many jobs;
--                  `#<group>` -> how many of a group
--
-- A job counts in its own group. If its task has limits, it counts in the group `task:<task>` as well, and if origins
-- have limits, in the group `origin:<origin>`. If it has none of these, it counts in ''.

local in_flight = root .. 'in_flight'

-- This read refuses a key of the wrong type before the verb has written anything.
-- USES in_flight
local counting = redis.call('HLEN', in_flight) > 0

-- How many bytes of a payload are read to find its task: a longer one has replaced the one that dispatch accepted.
local TASK_WITHIN = 8388608
-- How many bytes of payloads this call has read for that.
local payloads_read = 0

-- The payload of a job whose task or origin has limits, else nil. Only a payload in which such a task is named, or may
-- be named with escaped characters, is decoded: that takes 1 us and more, the search a tenth of it.
-- USES policy, record, payloads_read, TASK_WITHIN
local function limited_job(id)
  local size = redis.pcall('HSTRLEN', record(id), 'payload')
  if type(size) ~= 'number' or size == 0 or size > TASK_WITHIN then
    return nil
  end
  local payload = redis.call('HGET', record(id), 'payload')
  payloads_read = payloads_read + size
  local named = payload:find('\\', 1, true)
  for _, quoted in pairs(policy.named) do
    named = named or payload:find(quoted, 1, true)
  end
  local good, job = pcall(cjson.decode, named and payload or '')
  return good and type(job) == 'table' and type(job.task) == 'string' and job or nil
end

-- Where a job sends its request or message: scheme, host and port, or the name of a server. nil: nowhere, or the worker
-- will refuse it. The end of a name that is too long for a group stands for all of it.
-- USES ORIGIN_IN, ORIGIN_GROUP
local function origin_of(job)
  local argument = ORIGIN_IN[job.task]
  if not argument then
    return nil
  end
  local to = type(job.kwargs) == 'table' and job.kwargs[argument]
  to = to or (type(job.args) == 'table' and job.args[1])
  if type(to) ~= 'string' then
    return nil
  elseif argument == 'to' then
    return to:match('^%l+@(%l[%l%d_]*):')
  end
  local scheme, authority = to:lower():match('^(https?)://([^/?#]*)')
  if not authority or not authority:find('^[%w%.:_%[%]-]+$') then
    return nil
  end
  authority = authority:gsub(scheme == 'http' and ':80$' or ':443$', '')
  return (scheme .. '://' .. authority):sub(#ORIGIN_GROUP - 200)
end

-- The groups in which a job counts.
-- USES policy, group_of, field_of, limited_job, TASK_GROUP, origin_of, ORIGIN_GROUP
local function groups_of(id)
  local own = group_of(field_of(id, 'group')) or ''
  local job = policy.named and limited_job(id)
  if not job then
    return own
  end
  local groups = own ~= '' and { own } or {}
  local function add(group)
    if group ~= own then
      groups[#groups + 1] = group
    end
  end
  if policy.tasks[job.task] then
    add(TASK_GROUP .. job.task)
  end
  local origin = policy.origins and origin_of(job)
  if origin then
    add(ORIGIN_GROUP .. origin)
  end
  return table.concat(groups, '}')
end

-- The groups in a text that `groups_of` has made.
local function split_groups(groups)
  local found = {}
  for group in (groups .. '}'):gmatch('([^}]*)}') do
    found[#found + 1] = group
  end
  return unpack(found)
end

-- Count a job that has passed, unless it is counted already. `groups`: those in which it counts, if they are known.
-- USES in_flight, groups_of, split_groups
local function enter(id, groups)
  if not groups and redis.call('HEXISTS', in_flight, id) == 1 then
    return
  end
  groups = groups or groups_of(id)
  if redis.call('HSETNX', in_flight, id, groups) == 1 then
    redis.call('HINCRBY', in_flight, '*', 1)
    for _, group in ipairs({ split_groups(groups) }) do
      redis.call('HINCRBY', in_flight, '#' .. group, 1)
    end
  end
end

-- A job is in flight no more: it ended, waits for another attempt, or was taken away.
-- USES counting, in_flight, split_groups, throttled
local function leave(id)
  local groups = counting and redis.call('HGET', in_flight, id)
  if groups then
    redis.call('HDEL', in_flight, id)
    redis.call('HINCRBY', in_flight, '*', -1)
    for _, group in ipairs({ split_groups(groups) }) do
      if redis.call('HINCRBY', in_flight, '#' .. group, -1) == 0 then
        redis.call('HDEL', in_flight, '#' .. group)
      end
      redis.call('ZADD', throttled, 'XX', 0, group) -- its gate may be open now
    end
  end
end

-- Look at all groups that are held back, at the next chance. All scores become 0, infinite ones too. O(n).
-- USES throttled
local function reopen_all()
  redis.call('ZUNIONSTORE', throttled, 1, throttled, 'WEIGHTS', 0)
end

-- Count only while a limit needs it. To begin is O(n) in ready and in the workers' lists, once, when one is first set.
-- A job counts in the group that it has now. It may have been counted in another, which no end of a job would open.
-- USES policy, counting, in_flight, processing, enter, reopen_all
local function keep_count()
  local needed = policy.concurrency or policy.grouped
  if counting and not needed then
    redis.call('DEL', in_flight)
  elseif needed and not counting then
    redis.call('HSET', in_flight, '*', 0)
    reopen_all()
    local lists = { ready }
    for _, worker in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
      lists[#lists + 1] = processing(worker)
    end
    for _, list in ipairs(lists) do
      local ids = redis.pcall('LRANGE', list, 0, -1)
      for _, id in ipairs(ids) do
        enter(id)
      end
    end
  end
  counting = needed
end

-- Note that a task has limits now, or none. If it has its first, the jobs in flight are counted again: they do not
-- count in its group yet.
-- USES limits, TASK_GROUP, in_flight, counting
local function note_task(task)
  local group, noted, others = TASK_GROUP .. task, false, {}
  for other in (redis.call('HGET', limits, 'tasks') or ''):gmatch('[^}]+') do
    if other == task then
      noted = true
    else
      others[#others + 1] = other
    end
  end
  local ruled = redis.call('HEXISTS', limits, 'concurrency:' .. group) + redis.call('HEXISTS', limits, 'rate:' .. group)
  if ruled > 0 then
    others[#others + 1] = task
  end
  if ruled > 0 and not noted then
    redis.call('DEL', in_flight)
    counting = false
  end
  if #others > 0 then
    redis.call('HSET', limits, 'tasks', table.concat(others, '}'))
  else
    redis.call('HDEL', limits, 'tasks')
  end
end

-- Note whether origins have limits. With the first of them, the jobs in flight are counted again.
-- USES limits, ORIGIN_GROUP, in_flight, counting
local function note_origins()
  local ruled = false
  for _, field in ipairs(redis.call('HKEYS', limits)) do
    ruled = ruled or field:find('^%l+:' .. ORIGIN_GROUP) ~= nil
  end
  if not ruled then
    redis.call('HDEL', limits, 'origins')
  elseif redis.call('HSETNX', limits, 'origins', 1) == 1 then
    redis.call('DEL', in_flight)
    counting = false
  end
end

-- Set a limit by its field, '' removes it. The jobs that it holds back are examined again. `read_policy` and `admit`
-- must follow.
-- USES limits, reopen_all, throttled, TASK_GROUP, note_task, ORIGIN_GROUP, note_origins
local function set_limit(field, value)
  if value == '' then
    redis.call('HDEL', limits, field)
  else
    redis.call('HSET', limits, field, value)
  end
  local group = field:match('^%l+:(.*)$')
  if group == '*' or group == ORIGIN_GROUP .. '*' or field == 'reserved' then
    reopen_all()
  elseif group then
    redis.call('ZADD', throttled, 'XX', 0, group)
  end
  if group and group:sub(1, #TASK_GROUP) == TASK_GROUP then
    note_task(group:sub(#TASK_GROUP + 1))
  elseif group and group:sub(1, #ORIGIN_GROUP) == ORIGIN_GROUP then
    note_origins()
  end
end
