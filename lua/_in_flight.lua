-- The jobs in flight, which have passed the gate and not ended. They are counted only while a limit needs it.
--
-- in_flight  hash  id -> the groups in which it counts, with a `}` between them; `*` -> how many jobs;
--                  `#<group>` -> how many of a group
--
-- A job counts in its own group. If its task has limits, it counts in the group `task:<task>` as well, if origins have
-- limits, in the group `origin:<origin>`, and while batches are paused, in that of its batch. If it has none of these,
-- it counts in ''.

local in_flight = root .. 'in_flight'

-- This read refuses a key of the wrong type before the verb has written anything.
-- USES in_flight, is_bare
local counting = not is_bare and redis.call('HLEN', in_flight) > 0

-- How many bytes of a payload are read to find its task: a longer one has replaced the one that dispatch accepted.
local TASK_WITHIN = 8388608
-- How many bytes of payloads this call has read for that.
local payloads_read = 0

-- The payload of a job whose task or origin has limits, else nil. Only a payload in which such a task is named, or may
-- be named with escaped characters, is decoded: that takes 1 us and more, the search a tenth of it.
-- USES policy, payloads_read, TASK_WITHIN, field_size, whole_field
local function limited_job(id)
  local size = field_size(id, 'payload')
  if type(size) ~= 'number' or size == 0 or size > TASK_WITHIN then
    return nil
  end
  local payload = whole_field(id, 'payload')
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
-- USES ORIGIN_IN, KIND
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
  return (scheme .. '://' .. authority):sub(#KIND.origin - 200)
end

-- The pauses of batches whose jobs are in this queue. One table with its functions, since a script has at most 200
-- local names.
--
-- batch_holds  hash  `<home>/<batch>` -> the stamp of the last pause or resume that has come here, a space, and a `1`
--                    if the batch is paused. A call with a lower stamp comes late, and changes nothing
-- USES policy, field_of, KIND, limits
local batch_holds = { key = root .. 'batch_holds' }
-- The group of a batch. A group has at most 200 bytes.
function batch_holds.group_of(address)
  return KIND.batch .. (#address <= 200 - #KIND.batch and address or redis.sha1hex(address))
end
-- The group of the batch that a job is a member of. nil: it is in none, or no batch is paused in this queue.
function batch_holds.group(id)
  local address = policy.batches and (field_of(id, 'batch') or ''):match('^([%w._:@-]+/[%w._:@-]+)/%d')
  return address and batch_holds.group_of(address)
end
-- Is the batch of a job paused?
function batch_holds.has(id)
  local group = batch_holds.group(id)
  return group and redis.call('HEXISTS', limits, 'concurrency:' .. group) == 1
end

-- The groups in which a job counts.
-- USES policy, group_of, field_of, limited_job, origin_of, KIND, batch_holds
local function groups_of(id)
  local own = group_of(field_of(id, 'group')) or ''
  local job, batch = policy.named and limited_job(id), batch_holds.group(id)
  if not job and not batch then
    return own
  end
  local groups = own ~= '' and { own } or {}
  local function add(group)
    if group ~= own then
      groups[#groups + 1] = group
    end
  end
  if job and policy.tasks[job.task] then
    add(KIND.task .. job.task)
  end
  local origin = job and policy.origins and origin_of(job)
  if origin then
    add(KIND.origin .. origin)
  end
  if batch then
    add(batch)
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

-- Begin to count. O(n) in ready and in the workers' lists, once, when a limit is first set. A job counts in the group
-- that it has now. It may have been counted in another, which no end of a job would open.
-- USES in_flight, processing, enter, reopen_all, holders
local function begin_count()
  redis.call('HSET', in_flight, '*', 0)
  reopen_all()
  local lists = { ready }
  for _, worker in ipairs(holders()) do
    lists[#lists + 1] = processing(worker)
  end
  for _, list in ipairs(lists) do
    local ids = redis.pcall('LRANGE', list, 0, -1)
    for _, id in ipairs(ids) do
      enter(id)
    end
  end
end

-- Count only while a limit needs it.
-- USES policy, counting, in_flight, begin_count
local function keep_count()
  local needed = policy.concurrency or policy.grouped
  if counting and not needed then
    redis.call('DEL', in_flight)
  elseif needed and not counting then
    begin_count()
  end
  counting = needed
end

-- Note that a task has limits now, or none. If it has its first, the jobs in flight are counted again: they do not
-- count in its group yet.
-- USES limits, in_flight, counting, KIND
local function note_task(task)
  local group, noted, others = KIND.task .. task, false, {}
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
-- USES limits, in_flight, counting, KIND
local function note_origins()
  local ruled = false
  for _, field in ipairs(redis.call('HKEYS', limits)) do
    ruled = ruled or field:find('^%l+:' .. KIND.origin) ~= nil
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
-- USES limits, reopen_all, throttled, note_task, note_origins, KIND
local function set_limit(field, value)
  if value == '' then
    redis.call('HDEL', limits, field)
  else
    redis.call('HSET', limits, field, value)
  end
  if field == 'history' and tonumber(value) == 0 and redis.call('TYPE', root .. 'history').ok == 'stream' then
    redis.call('DEL', root .. 'history') -- no end would trim it
  end
  local group = field:match('^%l+:(.*)$')
  if group == '*' or group == KIND.origin .. '*' or field == 'reserved' then
    reopen_all()
  elseif group then
    redis.call('ZADD', throttled, 'XX', 0, group)
  end
  if group and group:sub(1, #KIND.task) == KIND.task then
    note_task(group:sub(#KIND.task + 1))
  elseif group and group:sub(1, #KIND.origin) == KIND.origin then
    note_origins()
  end
end

-- Runs: which worker a run belongs to, how many attempts and worker deaths count, and the one way in which runs end.

-- A run as `start` names it: its attempt, and when it was started. The attempt alone names no run, because an id that
-- is used again begins with attempt 1 again: a call that comes late would reach the newer run.
local function name_of_run(attempt, started)
  return attempt .. ' ' .. started
end

-- Whether a run belongs to this worker, by its record's worker, attempt and started. The caller has found the id in the
-- worker's list, from which a run that was taken away is removed. So only a newer run of the same worker must be
-- excluded: it has another name or, if it has not been started, the record names no worker. Any other difference was
-- written by a producer, and is ignored.
-- USES name_of_run, holds, worker_of, field_of, attempt_of, moment_of
local function belongs(worker, id, run, named, attempt, started)
  if not named then
    return false
  end
  local same = name_of_run(attempt or '', started or '') == run
  if named ~= worker and (not same or holds(worker_of(named), id) or field_of(id, 'finished')) then
    return false
  end
  return same or attempt_of(attempt) == 0 or not moment_of(started)
end

-- Whether a run, whose id is in this worker's list, belongs to the worker. If the record was replaced by a key of
-- another type, it does not.
-- USES belongs, job_fields
local function owns(worker, id, run)
  local last = job_fields(id, 'worker', 'attempt', 'started')
  return belongs(worker, id, run, last[1], last[2], last[3])
end

-- Add to a job's count of attempts, or take away from it.
-- USES record, attempt_of, field_of
local function count_attempts(id, more)
  redis.call('HSET', record(id), 'attempt', math.max(0, attempt_of(field_of(id, 'attempt')) + more))
end

-- A run ends that has not begun: it is no attempt, and did not start.
-- USES count_attempts, record
local function uncount_run(id)
  count_attempts(id, -1)
  redis.call('HDEL', record(id), 'started')
end

-- Keep why the last attempt failed: the caller writes a reason that is not about an attempt.
-- USES last_failure, record
local function keep_failure(id)
  local failure = last_failure(id)
  if failure then
    redis.call('HSET', record(id), 'failure', failure)
  end
end

-- A worker died in which this job ran alone, or the process in which it was isolated. So this job is the cause, and its
-- earlier doubtful runs count as attempts too. `unsure`: 1 = this run, which counts anyway, may not have begun; else 0.
-- USES suspicion_of, count_attempts, mark_suspect
local function convict(id, unsure)
  local deaths, doubts, counted = suspicion_of(id)
  count_attempts(id, doubts)
  mark_suspect(id, deaths + 1, 0, counted + doubts + unsure)
end

-- The fields that `end_runs` reads, of the first run of a light job, and its due, which is the tenth of them; nil if
-- the job is not light, or this is not its run. One table for all runs of this name: most of a call started
-- together.
-- USES light_jobs, recorded
local light_runs = {}
local function light_run(id, named, worker)
  local text, run = light_jobs[id], light_runs[named]
  if type(text) ~= 'string' then
    return nil
  end
  if not run then
    local started = named:match('^1 (%S+)$') or '-'
    run = { worker, '1', false, false, false, false, false, false, started, false, false, false, false }
    run.head = started .. ' ' .. worker .. ' '
    light_runs[named] = run
  end
  local head = run.head
  if text:find(head, 1, true) == 1 then
    local mark, due = text:match('^(=?)(%S+)', #head + 1)
    recorded[id] = mark == '='
    return run, due
  end
end

-- End runs of a worker. Each row from `first` on is one run: id, run, and the last arguments of `finish(id, run,
-- scheduled, ...)`. `run` has the record's worker, attempt, reply, again, stop, recurrence, reason, ledger, started,
-- due, group, by and batch. `takes_light`: `finish` knows light jobs, which otherwise get records first. `scheduled` is
-- the id's score on the schedule, false if it is not there. Returns the ids of the runs that do not belong to the
-- worker any more: LOST. Nothing is written for those. Also returns the ids of the runs that `finish` refused to end,
-- each followed by the error that it returned. They stay in the worker's list.
--
-- The runs are taken out of the worker's list first, which is also the check that they are there. So Redis must not be
-- able to refuse anything in `finish` after its first write: types are checked before, and the values that it writes
-- are checked or made here. Runs that end together have mostly started together: then they are the first of the list,
-- in this order, and one command takes them all out.
-- USES processing, expect, expect_gate, belongs, leave, admit, unkept, write_history, find_light, job_fields,
--      ended_light, light_run, light, record
local function end_runs(first, width, worker, now, finish, takes_light)
  local list, ids, lost, refused = processing(worker), {}, {}, {}
  expect('LLEN', list)
  expect_gate()
  for at = first, #ARGV, width do
    ids[#ids + 1] = ARGV[at]
  end
  local scores = ids[1] and redis.call('ZMSCORE', schedule, unpack(ids)) -- one command for all rows
  local head = ids[2] and redis.call('LRANGE', list, 0, #ids - 1) or {}
  local runs, dues, ours, taken = {}, {}, {}, 0
  find_light(ids)
  for i = 1, #ids do
    local id, named = ids[i], ARGV[first + (i - 1) * width + 1]
    local run, due
    if takes_light then
      run, due = light_run(id, named, worker)
    else
      record(id)
    end
    ours[i], dues[i] = run ~= nil, due
    if not run then
      run = job_fields(
        id,
        'worker',
        'attempt',
        'reply',
        'again',
        'stop',
        'recurrence',
        'reason',
        'ledger',
        'started',
        'due',
        'group',
        'by',
        'batch'
      )
      ours[i] = belongs(worker, id, named, run[1], run[2], run[9])
    end
    runs[i] = run
    if ours[i] and taken == i - 1 and head[i] == id then
      taken = i
    end
  end
  if taken > 0 then
    redis.call('LTRIM', list, taken, -1)
  end
  for i = 1, #ids do
    local id = ids[i]
    if i <= taken or (ours[i] and redis.call('LREM', list, 1, id) == 1) then
      local at, run = first + (i - 1) * width, runs[i]
      run[10] = dues[i] or run[10]
      local failure = finish(id, run, scores[i], unpack(ARGV, at + 2, at + width - 1))
      if failure then
        redis.call('RPUSH', list, id)
        refused[#refused + 1] = id
        refused[#refused + 1] = failure
      else
        leave(id)
      end
    else
      lost[#lost + 1] = id
    end
  end
  if #unkept > 0 then
    redis.call('DEL', unpack(unkept))
  end
  if #ended_light > 0 then
    redis.call('HDEL', light, unpack(ended_light))
  end
  write_history(now)
  admit(0, now)
  return lost, refused
end

-- Put the job of an ended run back on the schedule, and return true. A job that was cancelled ends instead: false. If
-- the id was scheduled again meanwhile, that time is kept as `again`: this job runs first, and then the new one.
-- `failed`: the run counts as an attempt; else why the last attempt failed is kept besides `reason`.
-- USES abort, record, again_of, moment_of, field_of, count_attempts, keep_failure
local function send_back(id, run, scheduled, due, reason, now, failed)
  if run[5] then
    abort(id, reason, RETENTION, '', now)
    return false
  end
  local key = record(id)
  if scheduled then
    redis.call('HSET', key, 'again', redis.call('ZSCORE', schedule, id))
  end
  redis.call('ZADD', schedule, again_of(due), id)
  if failed then
    redis.call('HDEL', key, ATTEMPT_FIELDS)
  else
    count_attempts(id, -1)
    keep_failure(id)
  end
  redis.call('HSET', key, 'reason', reason)
  -- Common to all attempts of a job, for its idempotency key.
  redis.call('HSETNX', key, 'planned', moment_of(field_of(id, 'due')) or '0')
  redis.call('HDEL', key, 'due', RUN_FIELDS)
  return true
end

-- Suspects: jobs that workers held when they died. One of them may have killed its worker.
--
-- suspects  hash  id -> how many workers died, in how many of those runs it is unknown whether the job had begun, and,
--                 unless it is 0, how many such runs are counted as attempts
--
-- A producer may write every field of a record, so the suspicion is not one of them: a repeated suspect costs its
-- worker a process, and false suspects would hold the other jobs up.

-- Seconds after the last death until all suspects are forgotten, so that deleted jobs leave nothing behind.
local SUSPECTED = 7 * 86400

local suspects = root .. 'suspects'

-- Whether any job is a suspect.
-- USES is_bare, suspects
local suspecting = not is_bare and redis.call('EXISTS', suspects) == 1

-- A job's deaths, doubtful runs and counted doubtful runs: 0, 0, 0 when it is not a suspect. pcall: a key of another
-- type holds no suspects.
-- USES suspects, suspecting
local function suspicion_of(id)
  if not suspecting then
    return 0, 0, 0
  end
  local text = redis.pcall('HGET', suspects, id)
  text = type(text) == 'string' and text or ''
  local deaths, doubts, counted = text:match('^(%d%d?%d?) (%d%d?%d?) ?(%d?%d?%d?)$')
  return tonumber(deaths or 0), tonumber(doubts or 0), tonumber(counted) or 0
end

-- Write how many workers died that held the job, in how many of those runs it is unknown whether it had begun, and how
-- many such runs are counted as attempts.
-- USES suspects, suspecting, milliseconds, SUSPECTED
local function mark_suspect(id, deaths, doubts, counted)
  suspecting = true
  local more = counted > 0 and ' ' .. math.min(counted, 999) or ''
  redis.pcall('HSET', suspects, id, math.min(deaths, 999) .. ' ' .. math.min(doubts, 999) .. more)
  redis.call('PEXPIRE', suspects, milliseconds(SUSPECTED))
end

-- The job is gone or has ended: it is no longer a suspect.
-- USES suspects, suspecting
local function acquit(id)
  if suspecting then
    redis.pcall('HDEL', suspects, id)
  end
end

-- A run of the job has ended: it is no longer a suspect. The record keeps the number of its doubtful runs.
-- USES suspicion_of, mark_suspect, acquit
local function clear_suspicion(id)
  local _, _, counted = suspicion_of(id)
  if counted > 0 then
    mark_suspect(id, 0, 0, counted)
  else
    acquit(id)
  end
end
