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

-- The ends that this call writes: lists, by outcome and worker; and parts, each of jobs with the same outcome, worker,
-- label and start. A list has four pieces of text for each row, and their number as `size`. They are joined at the end:
-- Lua hashes each text that is made, which costs Redis 10 instructions for each byte. `plain`: JSON has all ids as they
-- are. `known`: the beginnings of texts, as JSON.
local endings = { lists = {}, parts = {}, plain = false, known = {} }

-- The beginning of a text as JSON. The same texts come again and again.
-- USES endings
local function json_text(text)
  local found = endings.known[text]
  if not found then
    found = cjson.encode(text:sub(1, 300))
    endings.known[text] = found
  end
  return found
end

-- Prepare a part for its next jobs, which have another due: the pieces of their rows, and where they are counted.
-- USES endings, moment_of, worker_of
local function prepare(part, due, now)
  if not part.list then
    local key = part.outcome .. ' ' .. (worker_of(part.worker or nil) or '')
    part.list = endings.lists[key] or { size = 0 }
    endings.lists[key] = part.list
    part.began = moment_of(part.started or nil)
    part.at = tonumber(part.began)
    part.head, part.started_tail = '",' .. part.label .. ',', ',' .. (part.began or 'null') .. ',1],["'
    part.task = part.label:match('^%["([^"\\]*)"')
    if not part.task then -- it has escapes
      local good, label = pcall(cjson.decode, part.label)
      part.task = good and type(label) == 'table' and type(label[1]) == 'string' and label[1] or ''
    end
    endings.parts[#endings.parts + 1] = part
  end
  local planned = moment_of(due or nil)
  local began = planned and part.began
  part.due, part.planned = due, planned or 'null'
  part.tail = began and part.started_tail or ',null,1],["'
  local late = began and part.at - planned
  if late and part.least and part.least <= late and late < part.most then
    return
  end
  -- The k of a length of time: it is less than 2^k ms, and at least half of that, or k is 0.
  local function power_of(length)
    local _, k = math.frexp(length * 1000)
    return math.max(0, math.min(k, 40))
  end
  local power = late and power_of(late)
  part.least = late and (power > 0 and 2 ^ (power - 1) / 1000 or -math.huge)
  part.most = late and (power < 40 and 2 ^ power / 1000 or math.huge)
  local lengths = late and power .. ' ' .. power_of(now - part.at) or '- -'
  part.field = part.outcome .. ' ' .. lengths .. ' ' .. part.task
end

-- Note the end of a job, for `write_history`. `worker` and what follows it: the fields of its record, as they are
-- there. Jobs that end together have mostly the same task and start. `batch`: the field; nil or false = it has none.
-- USES policy, endings, attempt_of, json_text, prepare, member_reports
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
  if not part or part.label ~= label or part.started ~= started or part.worker ~= worker or part.outcome ~= outcome then
    part = { outcome = outcome, worker = worker, label = label, started = started, counts = {} }
    endings.last = part
  end
  if part.due ~= due or not part.list then
    prepare(part, due, now)
  end
  part.counts[part.field] = (part.counts[part.field] or 0) + 1
  local tail = part.tail
  if attempt ~= '1' or group or by or error or location then
    tail = tail:sub(1, -6) .. attempt
    if group or by or error or location then
      tail = tail .. ',' .. json_text(group or '') .. ',' .. json_text(by or '')
      tail = tail .. ',' .. json_text(error or '') .. ',' .. json_text(location or '')
    end
    tail = tail .. '],["'
  end
  if not endings.plain and id:find('[%c"\\]') then
    id = json_text(id):sub(2, -2)
  end
  local list = part.list
  local size = list.size
  list[size + 1], list[size + 2], list[size + 3], list[size + 4] = id, part.head, part.planned, tail
  list.size = size + 4
end

-- Note whether JSON has all ids of this call as they are: '1' = yes. Another client may have used any bytes as an id.
-- To look for those costs 3 % of a job, so a worker does it, where jobs end by the thousand.
-- USES endings
local function note_plain(plain)
  endings.plain = plain == '1'
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
-- USES policy, add_end, label_of, job_fields
local function note_history(id, outcome, now)
  local names = { 'worker', 'attempt', 'started', 'due', 'group', 'by', 'error', 'location', 'batch', 'payload' }
  local run = job_fields(id, unpack(names)) -- a record of another type has no fields
  local label = policy.history > 0 and label_of(run[10] or '')
  add_end(id, outcome, label, now, unpack(run, 1, 9))
end

-- Note that a job was cancelled before it ran, while its id has the record of a run, or of a job that has ended. It is
-- the next job if the id was replaced; otherwise another client has scheduled the id again, with the same payload.
-- USES add_end, label_of, record_key, job_fields
local function note_next(id, now)
  local replaced = redis.pcall('HEXISTS', record_key(id), 'next_payload') == 1
  local prefix = replaced and 'next_' or ''
  local job = job_fields(id, prefix .. 'payload', prefix .. 'group', 'next_by')
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
  for key, list in pairs(endings.lists) do
    local outcome, worker = key:match('^(%S+) (.*)$')
    local size = list.size
    ends = tonumber(ends) + size / 4
    list[1], list[size] = '[["' .. list[1], list[size]:sub(1, -4) .. ']' -- no row follows
    local entry = { 'outcome', outcome, 'worker', worker, 'ended', seconds(now), 'jobs', table.concat(list) }
    local least = string.format('%.0f', math.max(0, ends - policy.history + 1))
    redis.pcall('XADD', history, 'MINID', '=', least, string.format('%.0f-%s', ends, mark), unpack(entry))
  end
  redis.pcall('PEXPIRE', history, milliseconds(policy.history_age))
  local hour, counts = root .. 'hour:' .. math.floor(now / 3600), {}
  for _, part in ipairs(endings.parts) do
    for field, more in pairs(part.counts) do
      counts[field] = (counts[field] or 0) + more
    end
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
