-- The history of a queue: which jobs ended and how, and counts of that by the hour; and the runs of a job so far.
--
-- history   stream  an entry for each outcome that a call has written. Its id is `<n>-<mark>`. `mark` is the time at
--                   which the key was made, microseconds, and the queue has had n - mark ends since. So a key that is
--                   made again, as after a loss, goes on with greater ids. `outcome`; `worker`, '' = none; `ended`,
--                   Unix seconds; `jobs`, JSON: a list of rows
-- hour:<n>  hash    of the hour that begins n hours after 1970: `<outcome> <late> <run> <task>` -> how many jobs ended
--                   so. They started less than 2^late ms after their due, and at least half of that, or late is 0;
--                   `run` is the same of how long they ran. Both are '-' if they did not start
--
-- A row is [id, [task, tag, ...], due, started, attempt, group, by, error, location]. `due`: of its last attempt;
-- `started`: when the worker got it; null = it had none, or that had not begun; both Unix seconds. The last four are
-- left out if none is set.
--
-- Nothing here may keep a job from ending: a key of another type, or a user without the right, costs the history alone.

-- How many ends are kept, and for how many seconds after the last one, unless the limits `history` and `history_age`
-- say otherwise. 0 ends: nothing is written, no counts either. The ends of one call are removed together, so there may
-- be more.
local HISTORY = { most = 10000, age = 86400 }

-- The ends that this call writes: lists of rows, by outcome and worker; and the parts, each of jobs with the same
-- outcome, worker, task and times.
local endings = { lists = {}, parts = {} }

-- The beginning of a text as JSON. The same texts come again and again.
local json_texts = {}
local function json_text(text)
  local found = json_texts[text]
  if not found then
    found = cjson.encode(text:sub(1, 300))
    json_texts[text] = found
  end
  return found
end

-- A new part. `label`: JSON, a list of the task and the tags.
-- USES endings, moment_of, worker_of
local function begin_part(outcome, worker, label, due, started, now)
  local planned = moment_of(due or nil)
  local began = planned and moment_of(started or nil)
  local key = outcome .. ' ' .. (worker_of(worker or nil) or '')
  local part = { outcome = outcome, worker = worker, label = label, due = due, started = started, size = 0 }
  part.list = endings.lists[key] or {}
  endings.lists[key] = part.list
  -- The k of a length of time: it is less than 2^k ms, and at least half of that, or k is 0.
  local function power_of(length)
    local _, k = math.frexp(length * 1000)
    return math.max(0, math.min(k, 40))
  end
  local lengths = began and power_of(began - planned) .. ' ' .. power_of(now - began) or '- -'
  part.field = outcome .. ' ' .. lengths .. ' ' .. (label:match('^%["([^"]*)"') or '')
  part.head = '",' .. label .. ',' .. (planned or 'null') .. ',' .. (began or 'null') .. ','
  endings.parts[#endings.parts + 1] = part
  return part
end

-- Note the end of a job, for `write_history`. `worker` and what follows it: the fields of its record, as they are
-- there. Jobs that end together have mostly the same task and times. `batch`: the field; nil or false = it has none.
-- USES policy, endings, attempt_of, json_text, begin_part, member_reports
local function add_end(id, outcome, label, now, worker, attempt, started, due, group, by, error, location, batch)
  if batch then
    member_reports.note(batch, member_reports.code[outcome])
  end
  if policy.history == 0 then
    return
  end
  if attempt ~= '1' then
    attempt = attempt_of(attempt or nil)
    started = attempt > 0 and started
  end
  local part = endings.last
  if
    not part
    or part.label ~= label
    or part.due ~= due
    or part.started ~= started
    or part.worker ~= worker
    or part.outcome ~= outcome
  then
    part = begin_part(outcome, worker, label, due, started, now)
    endings.last = part
  end
  part.size = part.size + 1
  -- Another client may have used any bytes as an id.
  local text = id:find('[%c"\\]') and json_text(id):sub(2, -2) or id
  local row = '["' .. text .. part.head .. attempt
  if group or by or error or location then
    row = row .. ',' .. json_text(group or '') .. ',' .. json_text(by or '')
    row = row .. ',' .. json_text(error or '') .. ',' .. json_text(location or '')
  end
  part.list[#part.list + 1] = row
end

-- The task and the tags of a payload, for `add_end`; '' if it has no task, or is too long to be decoded here.
-- USES tags_of
local function label_of(payload)
  local good, job = pcall(cjson.decode, #payload <= 65536 and payload or '')
  job = good and type(job) == 'table' and job or {}
  local task = type(job.task) == 'string' and job.task:sub(1, 300) or ''
  return cjson.encode({ task, unpack(tags_of(job)) })
end

-- Note the end of a job by its record, which the caller has not deleted yet.
-- USES policy, fields_of, record, add_end, label_of
local function note_history(id, outcome, now)
  local names = { 'worker', 'attempt', 'started', 'due', 'group', 'by', 'error', 'location', 'batch', 'payload' }
  local run = fields_of(record(id), unpack(names)) -- a record of another type has no fields
  local label = policy.history > 0 and label_of(run[10] or '')
  add_end(id, outcome, label, now, unpack(run, 1, 9))
end

-- Note that a job was cancelled before it ran, while its id has the record of a run, or of a job that has ended. It is
-- the next job if the id was replaced; otherwise another client has scheduled the id again, with the same payload.
-- USES record, fields_of, add_end, label_of
local function note_next(id, now)
  local replaced = redis.pcall('HEXISTS', record(id), 'next_payload') == 1
  local prefix = replaced and 'next_' or ''
  local job = fields_of(record(id), prefix .. 'payload', prefix .. 'group', 'next_by')
  add_end(id, 'cancelled', label_of(job[1] or ''), now, nil, nil, nil, nil, job[2], replaced and job[3])
end

-- Write the ends that this call has noted. Each script that ends jobs calls this after the last one.
-- USES policy, endings, seconds, milliseconds, member_reports
local function write_history(now)
  member_reports.write(now)
  if not next(endings.lists) then
    return
  end
  local history, last = root .. 'history', redis.pcall('XREVRANGE', root .. 'history', '+', '-', 'COUNT', 1)[1]
  local ends, mark = (type(last) == 'table' and last[1] or ''):match('^(%d+)-(%d+)$')
  if not mark then
    mark = string.format('%.0f', math.max(0, math.min(now * 1e6, 9e15)))
    ends = mark
  end
  for key, ended in pairs(endings.lists) do
    local outcome, worker = key:match('^(%S+) (.*)$')
    ends = tonumber(ends) + #ended
    local jobs = '[' .. table.concat(ended, '],') .. ']]'
    local entry = { 'outcome', outcome, 'worker', worker, 'ended', seconds(now), 'jobs', jobs }
    local least = string.format('%.0f', math.max(0, ends - policy.history + 1))
    redis.pcall('XADD', history, 'MINID', '=', least, string.format('%.0f-%s', ends, mark), unpack(entry))
  end
  redis.pcall('PEXPIRE', history, milliseconds(policy.history_age))
  local hour, counts = root .. 'hour:' .. math.floor(now / 3600), {}
  for _, part in ipairs(endings.parts) do
    counts[part.field] = (counts[part.field] or 0) + part.size
  end
  for field, more in pairs(counts) do
    if redis.pcall('HINCRBY', hour, field, more) == more then -- a new field
      redis.pcall('PEXPIRE', hour, milliseconds(8 * 86400))
      if redis.call('HLEN', hour) > 4000 then -- the names of tasks may be a producer's invention
        redis.call('HDEL', hour, field)
      end
    end
  end
end

-- Note a run that has ended, and its job has not: in the field `runs`, a line of JSON for each, [attempt, worker,
-- started, ended, outcome, error, location, reason]. A job that runs very often keeps the first ten and the last ten.
-- `worker` and what follows it: the fields of its record, as they are there.
-- USES record, attempt_of, worker_of, moment_of, json_text, seconds
local function note_run(id, outcome, now, reason, error, location, worker, attempt, started)
  local size, lines = redis.call('HSTRLEN', record(id), 'runs'), {}
  if size > 0 and size <= 65536 then
    for line in redis.call('HGET', record(id), 'runs'):gmatch('[^\n]+') do
      lines[#lines + 1] = line
    end
  end
  if #lines >= 20 then
    table.remove(lines, 11)
  end
  local run = '[' .. attempt_of(attempt or nil) .. ',' .. json_text(worker_of(worker or nil) or '') .. ','
  run = run .. (moment_of(started or nil) or 'null') .. ',' .. seconds(now) .. ',' .. json_text(outcome) .. ','
  lines[#lines + 1] = run .. json_text(error) .. ',' .. json_text(location) .. ',' .. json_text(reason) .. ']'
  redis.call('HSET', record(id), 'runs', table.concat(lines, '\n'))
end
