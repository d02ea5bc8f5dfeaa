-- Members of the schedule: the job that a member stands for. A member that begins with `{` is an inline job, which
-- becomes a record here. A member that cannot be a job is kept under an id of its own, for the reader of the dead set.

-- Bytes of a member, at most: four times the default cap of a payload. The content of a longer one is not kept.
local MEMBER_MOST = 1048576

local ID_RULE = 'not 1 to 200 of A-Z a-z 0-9 . _ : @ -: schedule it again under such an id'
local TOO_LONG = 'the payload has %d bytes, more than %d'
local NOT_A_HASH = 'not a hash: DEL it and schedule the job again'

-- An id for a member that contains no valid one: the SHA-1 of the member, or, if it is very long, that of its length,
-- beginning and end.
-- USES MEMBER_MOST
local function digest(member)
  if #member <= MEMBER_MOST then
    return redis.sha1hex(member)
  end
  return redis.sha1hex(#member .. member:sub(1, 4096) .. member:sub(-4096))
end

-- Is this member of the schedule an inline job, or meant to be one?
local function is_inline(member)
  return member:byte() == 123 -- {
end

-- The id under which a member is kept that is not valid as an id.
-- USES digest
local function misnamed_id(member)
  return 'bad-' .. digest(member)
end

-- Keep the member, or its beginning when it is long, in the record under which it is kept.
-- USES record
local function note_member(id, member)
  redis.call('HSET', record(id), 'member', #member <= 1024 and member or member:sub(1, 1024))
end

-- The first of some ids whose record can be written. One with a key of another type, which another program has made,
-- must not stop the jobs behind this one. After the first: `bad-<SHA-1>`, `bad-<SHA-1>-2`, ...
-- USES record_key, misnamed_id
local function writable_id(first, member)
  local id, tried = first, 0
  while type(redis.pcall('HLEN', record_key(id))) ~= 'number' do
    tried = tried + 1
    id = misnamed_id(member) .. (tried > 1 and '-' .. tried or '')
  end
  return id
end

-- Keep a member that is not valid as an id, with its record if it has one and is not very long: the name of its record
-- would be copied several times. Returns the id under which it is kept.
-- USES misnamed_id, writable_id, record, MEMBER_MOST, note_member, record_key
local function keep_misnamed(member)
  local id = writable_id(misnamed_id(member), member)
  if #member <= MEMBER_MOST and redis.call('TYPE', record_key(member)).ok == 'hash' then
    redis.call('RENAME', record_key(member), record(id))
  end
  note_member(id, member)
  return id
end

-- Keep an inline job that cannot run, or its beginning when it is very long. Returns the id under which it is kept.
-- USES digest, writable_id, MEMBER_MOST, record
local function keep_inline(member)
  local id = writable_id(digest(member), member)
  if #member <= MEMBER_MOST then
    redis.call('HSET', record(id), 'payload', member)
  else
    redis.call('HSET', record(id), 'member', member:sub(1, 1024))
  end
  return id
end

-- Decode an inline job. Returns it as a table, or nil and why it cannot run.
-- USES TOO_LONG, is_id, ID_RULE
local function decode(member, cap)
  if #member > cap then
    return nil, TOO_LONG:format(#member, cap) .. ': store the data elsewhere and pass a reference'
  end
  local good, job = pcall(cjson.decode, member)
  if not good then
    return nil, 'the inline job is not valid JSON (' .. tostring(job) .. '): correct it and schedule it again'
  end
  for _, field in ipairs({ 'id', 'priority', 'group' }) do
    if job[field] == cjson.null then
      job[field] = nil
    end
  end
  for _, field in ipairs({ 'id', 'group' }) do
    if job[field] ~= nil and type(job[field]) ~= 'string' then
      return nil, 'the ' .. field .. ' of the inline job is not a string: put it in quotes'
    end
  end
  if job.id and not is_id(job.id) then
    return nil, 'the id of the inline job is ' .. ID_RULE
  end
  return job
end

-- Light jobs: from dispatch to the end of the first run, the times, the worker and the payload of a job are in a hash
-- of the queue. So one command reads or writes all jobs of a call. One for each record costs more than all else that
-- is done for a job.
--
-- light  hash  id -> started, worker and due, and the payload, with spaces between them; dashes for a worker and a
--              start that it does not have, a `=` before the due if the job has a record too
--
-- Inline jobs without an id, a priority or a group of their own are light, and have no record: most never get one,
-- since they run once, end well, and nobody can ask for them by an id. A job with a record is light if that has only
-- the payload, the priority and when it was created.
--
-- Code that reads fields by `field_of` or `job_fields` finds them wherever they are. Code that writes to a record gets
-- its key from `record`, which moves what the hash has to the record: then the job is not light any more.

-- The light jobs that this call has read: id -> the text of the hash, or the fields of the job, once they were asked
-- for; false = it is no light job. `recorded`: id -> true if it has a record too. `more_light`: whether there are light
-- jobs that are not read yet; nil = that is not known.
local light, light_jobs, recorded = root .. 'light', {}, {}
local more_light

-- May an inline job do without a record? One that has these names in an argument, or any escape, gets a record, since
-- it is not decoded here: its worker finds out whether it is JSON. It is short, as a call reads all its jobs at once.
local LIGHT_MOST = 2048
local function may_be_light(member)
  return #member <= LIGHT_MOST
    and member:byte(-1) == 125 -- }
    and not member:find('\\', 1, true)
    and not member:find('"id"', 1, true)
    and not member:find('"priority"', 1, true)
    and not member:find('"group"', 1, true)
end

-- Redis keeps a hash as a list, in which it searches for each field, while no value is longer than this.
local LISTED_MOST = 64

-- The text of a light job, as the hash has it. `due`: with the mark.
-- USES LISTED_MOST
local function light_text(member, due, started, worker)
  if started then
    return started .. ' ' .. worker .. ' ' .. due .. ' ' .. member
  end
  local missing = LISTED_MOST - #due - #member - 3
  return '- ' .. (missing > 1 and ('-'):rep(missing) or '-') .. ' ' .. due .. ' ' .. member
end

-- Read the light jobs among some ids, by one command for all, and return whether there are any. pcall: a key of another
-- type has none.
-- USES first_sizes, light, more_light, light_jobs
local function find_light(ids)
  if first_sizes[light] then
    more_light = first_sizes[light] > 0
  elseif #ids > 4 then
    more_light = redis.call('EXISTS', light) == 1
  end
  local found = false
  if more_light ~= false and ids[1] then
    local texts = redis.pcall('HMGET', light, unpack(ids))
    for i = 1, #ids do
      light_jobs[ids[i]] = texts[i] or false
      found = found or light_jobs[ids[i]]
    end
  end
  return found ~= false
end

-- The fields of a light job by their names, false when it is not one.
-- USES light_jobs, more_light, light, recorded
local function light_of(id)
  local job = light_jobs[id]
  if job == false or (job == nil and more_light == false) then
    return false
  elseif job == nil then
    if more_light == nil then
      more_light = redis.call('EXISTS', light) == 1
    end
    job = more_light and redis.pcall('HGET', light, id)
  end
  if type(job) == 'string' then
    local started, worker, mark, due, at = job:match('^(%S+) (%S+) (=?)(%S+) ()')
    recorded[id] = mark == '='
    if not due then
      job = false -- another program has written it
    elseif started == '-' then
      job = { payload = job:sub(at), due = due }
    else
      job = { payload = job:sub(at), due = due, attempt = '1', worker = worker, started = started }
    end
  end
  light_jobs[id] = job and not job.err and job
  return light_jobs[id]
end

-- Write to the record of a light job what the hash has, and more fields. A payload that is there stays. pcall: if the
-- key is of another type, what follows finds that. `started`: nil = it has not.
-- USES record_key, recorded, light_of
local function write_light(id, due, worker, started, ...)
  local key = record_key(id)
  if not recorded[id] then
    redis.pcall('HSETNX', key, 'payload', light_of(id).payload)
  end
  if started then
    redis.pcall('HSET', key, 'due', due, 'attempt', '1', 'worker', worker, 'started', started, ...)
  else
    redis.pcall('HSET', key, 'due', due)
  end
end

-- The key of a job's record, for what writes to it: a light job becomes one that only has a record.
-- USES light_of, write_light, light, record_key, light_jobs
local function record(id)
  local job = light_of(id)
  if job then
    write_light(id, job.due, job.worker, job.started)
    redis.call('HDEL', light, id)
    light_jobs[id] = false
  end
  return record_key(id)
end

-- Recurrences, as the verbs of jobs need them.
--
-- recurrences        zset  name -> the planned time that is put on the schedule next, Unix seconds, <= 0: from now on
-- recurrence:<name>  hash  rule, zone, payload and the rest of the declaration; its history: made, runs, done,
--                          failed, failing (in a row), missed, last_id, last_outcome, last_finished, last_success,
--                          last_lateness; the ids of occurrences: current, waiting, ahead, requested; current_due,
--                          the due of current; and moved, when it was last moved on
-- declared:<owner>   set   names of the recurrences that an app declares in its code
-- revisions:<owner>  zset  digest of an app's declarations -> their revision; the newest revision is in force
-- apps               set   the owners that have registered revisions

-- The refusal of a name that no recurrence has.
-- USES fail
local function no_recurrence(name)
  return fail('MISSING', name .. ' is not a recurrence of queue ' .. string.match(root, '{(.*)}'))
end

-- Is an occurrence on its way, or does it run?
-- USES place_of, job_fields
local function unended(id)
  local run = job_fields(id, 'worker', 'finished', 'payload')
  return not run.err and run[3] and not run[2] and place_of(id, run[1], run[2])
end

-- Have the next time of a recurrence be the first one from now on. The score is 0 or -1, whichever it was not: so a
-- dispatcher that has read it, with the rule and calendars of then, does not move the recurrence on.
local function plan_from_now(name)
  redis.call('ZADD', recurrences, redis.call('ZSCORE', recurrences, name) == '0' and -1 or 0, name)
end

-- Plan a recurrence again from now on. Occurrences on the schedule ahead of their time no longer count as made.
-- USES recurrence, made_of, ahead_of, withdraw, plan_from_now
local function restart(name)
  local key = recurrence(name)
  local made = made_of(redis.call('HGET', key, 'made')) - #ahead_of(name)
  withdraw(name)
  redis.call('HSET', key, 'made', math.max(made, 0))
  redis.call('HDEL', key, 'moved')
  plan_from_now(name)
end

-- The names of the recurrences that an app declares.
local function declared_by(owner)
  return root .. 'declared:' .. owner
end

-- Delete a recurrence.
-- USES recurrence, declared_by, withdraw, forget_requests, pauses
local function delete_recurrence(name)
  local key = recurrence(name)
  local owner = redis.call('HGET', key, 'owner')
  withdraw(name)
  forget_requests(name)
  redis.pcall('ZREM', pauses, name)
  if owner then
    redis.pcall('SREM', declared_by(owner), name) -- the record may name any owner, whose key may be of another type
  end
  redis.call('ZREM', recurrences, name)
  redis.call('DEL', key)
end

-- The revisions of an app's declarations. If an old one starts again, its number is lower than the newest.
local function revisions_of(owner)
  return root .. 'revisions:' .. owner
end

-- The apps that have registered revisions, by which `forget` finds those.
local apps = root .. 'apps'

-- The newest revision of an app's declarations; minus infinity without one.
-- USES revisions_of
local function newest_of(owner)
  return tonumber(redis.call('ZRANGE', revisions_of(owner), -1, -1, 'WITHSCORES')[2]) or -math.huge
end

-- Is there a newer revision? A declaration without a revision is older than any.
-- USES newest_of
local function is_older(owner, revision)
  return (tonumber(revision) or -math.huge) < newest_of(owner)
end

-- Decide on an occurrence that is due. 'go': it runs. 'skip': it is dropped, because it was missed or the
-- one before has not ended. 'wait': it waits until that one has ended. 'back': it is a requested run and waits as
-- such. An occurrence that has run before (it is retried, snoozed, or was revived) always gets 'go': it was judged the
-- first time.
-- USES recurrence, moment_of, attempt_of, occurrence_of, unended, field_of, requests_of, job_fields
local function judge_occurrence(name, id, due, now)
  local key = recurrence(name)
  local found =
    redis.pcall('HMGET', key, 'overlap', 'current', 'waiting', 'misfire', 'ahead', 'requested', 'current_due')
  local run = job_fields(id, 'planned', 'misfire_grace', 'attempt', 'snoozes')
  local planned, misfire_grace = tonumber(moment_of(run[1])), tonumber(moment_of(run[2]))
  local has_run = attempt_of(run[3]) + attempt_of(run[4]) > 0
  if found.err or redis.call('EXISTS', key) == 0 or has_run or not planned then
    return 'go'
  elseif found[6] ~= id and not (' ' .. (found[5] or '') .. ' '):find(' ' .. id .. ' ', 1, true) then
    return 'go' -- its record was not written by `recur`
  end
  local overlap, misfire, ahead = found[1] or 'skip', found[4] or 'once', found[5]
  local current, waiting = occurrence_of(name, found[2]), occurrence_of(name, found[3])
  if misfire_grace and misfire ~= 'all' and now - tonumber(due) > misfire_grace and waiting ~= id then
    -- Late by more than its grace: if several are, only the newest runs, or none.
    local newer = tonumber(redis.call('ZSCORE', recurrences, name) or 'inf') <= now
    for other in (ahead or ''):gmatch('@(%S+)') do
      local at = tonumber(other)
      newer = newer or (at and at > planned and at <= now)
    end
    if misfire == 'skip' or newer then
      return 'skip'
    end
  end
  if overlap ~= 'allow' and current and current ~= id and found[6] ~= id and found[7] == due then
    return 'skip' -- both waited for this opening of the window: one of them runs, however soon it has ended
  end
  if overlap ~= 'allow' and current and current ~= id and unended(current) then
    if found[6] == id then
      -- Before the requests that wait. pcall: the key may be of another type.
      return type(redis.pcall('ZADD', requests_of(name), 0, id:sub(#name + 2))) == 'number' and 'back' or 'skip'
    end
    -- A run that an operator has requested does not replace an occurrence of the rule.
    local waits = overlap == 'wait' or current == found[6]
    if waits and (waiting == id or not waiting or not redis.call('ZSCORE', schedule, waiting)) then
      redis.call('HSET', key, 'waiting', id)
      return 'wait'
    end
    return 'skip'
  end
  redis.call('HSET', key, 'current', id, 'current_due', due)
  if waiting then
    redis.call('HDEL', key, 'waiting')
    if waiting ~= id then
      -- Another one still waits: the record of the run that it waited for was deleted, so no end has released it.
      redis.call('ZADD', schedule, 'XX', moment_of(field_of(waiting, 'planned')) or now, waiting)
    end
  end
  return 'go'
end

-- Forget a pause, and the failures before it; return whether there was one. The caller sets the score.
-- USES recurrence, pauses
local function end_pause(name)
  redis.pcall('ZREM', pauses, name)
  redis.call('HDEL', recurrence(name), 'paused_until', 'paused_why', 'failing')
  return redis.call('HDEL', recurrence(name), 'paused') == 1
end

-- Requested runs: planned times that an operator wants run now, by `trigger` and `backfill`.
--
-- requests:<name>   zset  planned time -> its place in the order: 0 = before all others, else the planned time itself
-- requested:<name>  zset  planned time -> the same; all that were requested, so that none is requested twice
--
-- A planned time waits in `requests` until its job may be made. Unless the recurrence allows overlap, they run one
-- after another, and beside no other occurrence. The field `requested` of the recurrence is the id of the latest job.

-- How many requested runs of a recurrence may wait, and how many are remembered, the latest planned times: about 100
-- bytes each. To delete this number takes 3 ms.
local REQUESTS_MOST = 20000
-- How many requested runs are on the schedule or run at a time, if overlap is allowed.
local REQUESTS_AT_ONCE = 100

local function requested_of(name)
  return root .. 'requested:' .. name
end

-- Request a planned time; `order` is its place. Returns whether it was neither requested before nor has a job.
-- USES requested_of, record, requests_of
local function request(name, planned, order)
  if redis.call('ZADD', requested_of(name), 'NX', planned, planned) == 0 then
    return false
  elseif redis.call('EXISTS', record(name .. '@' .. planned)) == 1 then
    return false
  end
  redis.call('ZADD', requests_of(name), order, planned)
  return true
end

-- Forget the requests of a recurrence that is deleted.
-- USES requests_of, requested_of
local function forget_requests(name)
  redis.call('DEL', requests_of(name), requested_of(name))
end

-- The same, unless an occurrence is on its way or runs that a requested run must not overlap with.
-- USES recurrence, occurrence_of, unended, begin_requests
local function begin_requests_if_free(name, most, now)
  local found = redis.pcall('HMGET', recurrence(name), 'overlap', 'current')
  local current = not found.err and occurrence_of(name, found[2])
  if found[1] == 'allow' or not (current and unended(current)) then
    begin_requests(name, most, now)
  end
end
