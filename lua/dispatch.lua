#!lua flags=allow-oom
-- dispatch: schedule -> backlog, for due jobs. The reply says how long the dispatcher may sleep.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        limit     count: how many at most, under 1000; up to 16 more if more than that are due
--        cap       count: bytes that a payload may have
--        canary    the dispatcher's id: also send it and idle workers a message, which proves their subscriptions, and
--                  cause a keyspace event, which proves that Redis sends them; '' = send neither
-- REPLY  now; seconds until the next job is due or the gate opens, '0' = more is due already, '' = there is neither;
--        list of the due times of the jobs that left the schedule; list of id, reason of the jobs that went to dead;
--        list of the recurrences that missed an occurrence, once for each; seconds until a rate or the end of a pause
--        opens the gate, '' = none does
-- FAILS  none
-- TWICE  the second call finds nothing due
-- RARE   record, bury, judge_occurrence, tally, remove_waiting, keep_misnamed, reuse, keep_inline, with_failure,
--        throttled_in, field_of, holds, worker_of, recurrence_of, begin_count, judge_groups, reopen, spend, tokens,
--        end_queue_pause, note_turns, milliseconds, job_fields, place_of, field_size, whole_field
-- USES   clock, expect, expect_gate, seconds, MEMBER_MOST, field_of, remove_waiting, bury, record, TOO_LONG,
--        priority_of, group_of, moment_of, judge_occurrence, tally, turn_of, next_score, keep_misnamed, NOT_A_HASH,
--        holds, worker_of, reuse, throttled_in, recurrence_of, save_turns, open, payload_size, is_inline, is_id,
--        ID_RULE, decode, digest, keep_inline, with_failure, write_history, find_light, record_key, light_text,
--        may_be_light, first_sizes, throttled, light_of, LIGHT_MOST, light, light_jobs, fields_of, busy_leases, idle,
--        job_fields, place_of, UNREAD, whole_field, field_size
--
-- O(n log n) in the n <= limit jobs moved, about 4 us each. An inline job becomes a light job or a record here. A job
-- that cannot run goes to dead with a reason, and does not stop the others.

local now, limit, cap, canary = unpack(ARGV, 1, 4)
now, limit, cap = clock(now), tonumber(limit), tonumber(cap)

-- How long a record may come after its ZADD, in seconds.
local RECORD_WAIT = 2
-- How many of the newest due jobs a call looks at when more is due than it moves.
local NEWEST = 16
-- The fields of a record that say nothing but what the job is.
local PLAIN = { payload = true, priority = true, created = true }
-- While fewer jobs than this wait, those with a record become light too: the payload is then there twice.
local TWICE_MOST = 100000
-- Why an inline job is refused whose id is taken.
local TAKEN = 'the id %s is that of a job with another payload that has not ended: '
  .. 'revive this one, which then runs under the id that it has here'
-- How many bytes of members a call reads, and how many at once: inline jobs may be long, and each MB takes Redis 5 ms.
local BYTES_MOST, BYTES_SLICE = 1048576, 65536
-- How many idle workers hear a canary: others test their connections by themselves. Each takes 2 us.
local HEARERS = 250

if canary ~= '' then
  redis.call('DEL', root .. 'canary')
  redis.call('ZADD', root .. 'canary', 0, '')
  redis.call('DEL', root .. 'canary')
  redis.call('PUBLISH', 'evsched:canary:' .. canary, '1')
  for _, worker in ipairs(redis.pcall('ZRANGE', idle, 0, HEARERS - 1)) do
    redis.pcall('SPUBLISH', root .. 'idle:' .. worker, 'canary') -- pcall: without the right, they test them themselves
  end
end

expect('ZCARD', dead)
expect('HLEN', light)
expect_gate()

local total = redis.call('ZCOUNT', schedule, '-inf', seconds(now))

-- Members of the schedule from a rank on as member, score, ..., read `step` at a time: at least one, and at most
-- BYTES_MOST bytes.
local function read_from(first, last, step)
  local found, bytes = {}, 0
  while first <= last and bytes < BYTES_MOST do
    local slice = redis.call('ZRANGE', schedule, first, math.min(first + step - 1, last), 'WITHSCORES')
    for i = 1, #slice, 2 do
      bytes = bytes + #slice[i]
      if bytes > BYTES_MOST and #found > 0 then
        return found
      end
      found[#found + 1], found[#found + 2] = slice[i], slice[i + 1]
    end
    first = first + step
  end
  return found
end

-- The due members as member, score, ..., the earliest first: at most `limit` jobs and BYTES_MOST bytes.
local function read_due()
  local count = math.min(limit, total)
  if count == 0 then
    -- If the front is too long to be a job, take it before it is due: every read of the front would transfer it.
    local front = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')
    return front[1] and #front[1] > math.max(MEMBER_MOST, cap) and front or {}
  end
  local step = count
  if count > 1 then
    -- The average size: MEMORY USAGE measures the first `count` members, and takes the others to be as long.
    local average = redis.call('MEMORY', 'USAGE', schedule, 'SAMPLES', count) / redis.call('ZCARD', schedule)
    if average * count > BYTES_MOST then
      step = math.max(1, math.floor(BYTES_SLICE / average))
    end
  end
  return read_from(0, count - 1, step)
end

local due = read_due()
if #due == 2 * limit and total > limit then
  -- More is due than one call moves, most likely of one group: that of the last job. The newest due jobs of other
  -- groups do not wait behind it.
  local newest = read_from(math.max(limit, total - NEWEST), total - 1, 1)
  local last_group = field_of(due[#due - 1], 'group') or ''
  for i = 1, #newest, 2 do
    local id = newest[i]
    if not is_inline(id) and (field_of(id, 'group') or '') ~= last_group then
      due[#due + 1] = id
      due[#due + 1] = newest[i + 1]
    end
  end
end
local is_ready = {}
if #due > 0 and first_sizes[ready] > 0 then
  for _, id in ipairs(redis.call('LRANGE', ready, 0, -1)) do
    is_ready[id] = true
  end
end

-- Do all workers know light jobs? Those of the release before do not, nor do they say how long their busy lease is.
-- While there is no worker, one of those may come.
local workers = #due > 0 and redis.pcall('ZCARD', leases)
local takes_light = workers and workers ~= 0 and workers == redis.pcall('HLEN', busy_leases)
-- The ids of the due members that become light jobs, most inline jobs, by their places in `due`. Whether any of them is
-- known already, by a record or as a light job, one command tells for all records, and one for all light jobs.
local light_ids, ids, keys, explicit = {}, {}, {}, {}
for i = 1, #due, 2 do
  local member = due[i]
  if not is_inline(member) then
    explicit[member] = true
    ids[#ids + 1] = #member <= 200 and member or nil
  elseif takes_light and #member <= cap and may_be_light(member) then
    local id = redis.sha1hex(member)
    light_ids[i] = id
    ids[#ids + 1] = id
    keys[#keys + 1] = record_key(id)
  end
end
if keys[1] and redis.call('EXISTS', unpack(keys)) > 0 then
  light_ids, keys = {}, {}
end
-- Whether any other job is due. Most calls need none of its functions, each of which costs as much as a small command.
local is_mixed = 2 * #keys < #due
if find_light(ids) or is_mixed or next(is_ready) then
  for i = 1, #due, 2 do
    local id = light_ids[i]
    if id and (light_jobs[id] or explicit[id] or is_ready[id]) then
      light_ids[i], is_mixed = nil, true
    end
  end
end

local moved, buried, missed, places, leaving = {}, {}, {}, {}, {}
-- The new light jobs, as id, text, ...
local new_light = {}

-- Give a job its place in the backlog.
local function line_up(id, score, turn)
  local last = #places
  places[last + 1], places[last + 2] = next_score(turn), id
  moved[#moved + 1] = score
end

local function add_light(id, text)
  light_jobs[id] = text
  local last = #new_light
  new_light[last + 1], new_light[last + 2] = id, text
end

-- A score near 0 means "now", and is replaced by that time.
local function due_of(score)
  return tonumber(score) >= 1 and score or seconds(now)
end

local move_mixed
if is_mixed then
  -- The key of a job's record, as `record`. The job may have become light in this call, under its id or as a member.
  local function record_of(id)
    for i = light_jobs[id] and #new_light - 1 or 0, 1, -2 do
      if new_light[i] == id then
        table.remove(new_light, i)
        table.remove(new_light, i)
      end
    end
    return record(id)
  end

  -- Make a record of an inline job: whether Redis could.
  local function adopt(id, member, priority, group)
    local fields = { 'payload', member }
    for name, value in pairs({ priority = priority, group = group }) do
      fields[#fields + 1] = name
      fields[#fields + 1] = tostring(value)
    end
    return type(redis.pcall('HSET', record_of(id), unpack(fields))) == 'number'
  end

  -- The jobs that this call has moved on.
  local moved_on = {}

  -- The payload of the job of this id, or of its next run; nil or false if there is none, or it has ended.
  local function unended_payload(id)
    local job = job_fields(id, 'worker', 'finished', 'next_payload', 'payload')
    local place = not job.err and (light_of(id) or (moved_on[id] and not job[2]) or place_of(id, job[1], job[2]))
    if not place or place == 'dead' or place == 'finished' then
      return nil
    end
    local name, payload = job[3] and 'next_payload' or 'payload', job[3] or job[4]
    return payload == UNREAD and field_size(id, name) <= cap and whole_field(id, name) or payload
  end

  -- The id of the job that a member stands for. When it cannot run: the id under which it is kept, and why.
  local function identify(member)
    if not is_inline(member) then
      if is_id(member) then
        return member
      end
      return keep_misnamed(member), 'the id is ' .. ID_RULE
    end
    local job, problem = decode(member, cap)
    if problem then
      return keep_inline(member), problem
    end
    local id = job.id or digest(member)
    local payload = job.id and unended_payload(id)
    if payload == member then
      return id
    elseif payload then
      local own = digest(member)
      if unended_payload(own) then
        return own -- it was refused before, and revived
      end
      return keep_inline(member), TAKEN:format(id)
    elseif not adopt(id, member, job.priority, job.group) then
      return keep_inline(member), 'the key of the record of ' .. id .. ' is ' .. NOT_A_HASH
    end
    return id
  end

  -- Put a job into dead. If its id also waits already, with the same record, it is removed there.
  local function quarantine(id, reason)
    remove_waiting(id)
    reason = with_failure(id, reason)
    bury(id, 'dead', reason, now)
    buried[#buried + 1] = id
    buried[#buried + 1] = reason
  end

  -- Why a job cannot run; nil when it can.
  local function check(id, size, priority, group)
    if size == 0 then
      return 'no payload in its record: HSET '
        .. record(id)
        .. ' payload {...} before the ZADD, or at most 2 s after it'
    elseif size > cap then
      return TOO_LONG:format(size, cap) .. ': store the data elsewhere and pass a reference'
    elseif not priority_of(priority) then
      return 'the priority is not a whole number from 0 to 9: HSET ' .. record(id) .. ' priority 5'
    elseif not group_of(group) then
      return 'the group has more than 200 bytes, or a `}`: give it another name'
    end
  end

  -- Wait for a payload that is not there yet: look again soon, then at doubling intervals, so that a job starts at most
  -- twice as late as its record came. Returns false once that has taken too long.
  local function await_record(id, score, since)
    since = math.min(tonumber(moment_of(since)) or now, now)
    if now - since >= RECORD_WAIT then
      return false
    end
    redis.call('HSET', record(id), 'awaited', seconds(since), 'due', score)
    redis.call('ZADD', schedule, seconds(math.min(now + math.max(0.01, now - since), since + RECORD_WAIT)), id)
    return true
  end

  -- Line up a job whose record has this key, unless its recurrence decides otherwise. Returns whether it leaves the
  -- schedule.
  local function line_up_known(id, key, score, priority, group, name)
    local verdict = name and judge_occurrence(name, id, score, now)
    if verdict == 'wait' then
      redis.call('ZADD', schedule, '+inf', id)
      return false
    elseif verdict == 'skip' or verdict == 'back' then
      if verdict == 'skip' then
        tally(name, 'missed', 1)
        missed[#missed + 1] = name
      end
      redis.call('DEL', key)
      return true
    end
    score = due_of(score)
    redis.call('HSET', key, 'due', score)
    line_up(id, score, turn_of(priority, group))
    return true
  end

  -- The record of a job, by the names of its fields; of a long one, only what `move_on` needs. nil: it is not a hash.
  local function read_record(key)
    local bytes, job = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', '512'), {}
    if bytes and bytes <= 4096 then
      local fields = redis.pcall('HGETALL', key)
      for i = 1, #fields, 2 do
        job[fields[i]] = fields[i + 1]
      end
      return not fields.err and job or nil
    end
    local names = { 'payload', 'worker', 'finished', 'priority', 'group', 'awaited', 'parked', 'recurrence' }
    local fields = fields_of(key, unpack(names))
    for i, name in ipairs(names) do
      job[name] = fields[i] or nil
    end
    job.rest = true -- a light job's record is short, so this one has other fields, such as the attempts
    return not fields.err and job or nil
  end

  -- May a job be light, by its record? `size`: of the payload.
  local function is_plain(job, size)
    for name in pairs(job) do
      if not PLAIN[name] then
        return false
      end
    end
    return takes_light and size <= LIGHT_MOST and first_sizes[backlog] < TWICE_MOST
  end

  -- Move one due job on, by its record. Returns whether it leaves the schedule.
  local function move_on(id, score)
    local key = light_of(id) and record_of(id) or record_key(id)
    local job = read_record(key)
    if not job then
      quarantine(keep_misnamed(id), 'the key of its record is ' .. NOT_A_HASH)
      return true
    end
    local payload, worker, finished, awaited, parked = job.payload, job.worker, job.finished, job.awaited, job.parked
    local size, priority, group = payload_size(id, payload), job.priority or '5', job.group or ''
    if worker then
      if holds(worker_of(worker), id) then
        -- It runs now. The verb that ends the run puts it on the schedule again.
        redis.call('HSET', key, 'again', score)
        return true
      end
      redis.call('HDEL', key, 'worker')
    end
    if awaited then
      score = moment_of(field_of(id, 'due')) or score
    end
    if size == 0 and not finished and await_record(id, score, awaited) then
      return false
    end
    local problem = check(id, size, priority, group)
    if problem then
      quarantine(id, problem)
      return true
    end
    if awaited then
      redis.call('HDEL', key, 'awaited')
    end
    if finished then
      reuse(id)
      redis.call('HDEL', key, OWN_FIELDS, WORK_FIELDS) -- of the job that has ended: a client used its id again
    end
    if is_ready[id] or (parked and throttled_in(id)) then
      return true -- it waits already
    end
    if is_plain(job, size) then
      score = due_of(score)
      line_up(id, score, turn_of(priority, ''))
      add_light(id, light_text(payload, '=' .. score))
      return true
    end
    return line_up_known(id, key, score, priority, group, recurrence_of(id, job.recurrence))
  end

  -- Move one due member on that is not light yet.
  move_mixed = function(member, score)
    local id, problem = identify(member)
    if problem then
      quarantine(id, problem)
    end
    local leaves = problem or move_on(id, score)
    moved_on[id] = true
    if leaves or id ~= member then
      leaving[#leaving + 1] = member
    end
    if leaves and id ~= member then
      leaving[#leaving + 1] = id -- an inline job is its id's only place on the schedule, as if that were added again
    end
  end
end

-- The due are in the order of their scores.
local is_any_now = due[1] and tonumber(due[2]) < 1
local turn
for i = 1, #due, 2 do
  local member, score = due[i], due[i + 1]
  local id = light_ids[i]
  if id then
    score = is_any_now and due_of(score) or score
    turn = turn or turn_of('5', '')
    line_up(id, score, turn)
    add_light(id, light_text(member, score))
    if is_mixed then
      leaving[#leaving + 1] = member
    end
  else
    move_mixed(member, score)
  end
end

if #new_light > 0 then
  redis.call('HSET', light, unpack(new_light))
end
if #places > 0 then
  redis.call('ZADD', backlog, 'NX', unpack(places))
  if first_sizes[dead] + #buried > 0 then
    -- The record of a dead job may have been deleted before its id was used again: then only the dead set names it.
    local lined_up = {}
    for i = 2, #places, 2 do
      lined_up[#lined_up + 1] = places[i]
    end
    redis.call('ZREM', dead, unpack(lined_up))
  end
end
if #leaving > 0 then
  redis.call('ZREM', schedule, unpack(leaving))
elseif due[1] and not is_mixed then
  redis.call('ZREMRANGEBYRANK', schedule, 0, #due / 2 - 1) -- they are the first
end
local opens = open(0, now)
if #places > 0 and redis.call('EXISTS', backlog, throttled) > 0 then
  save_turns(2 * limit)
end

local sleep = ''
local nearest
if total > #due / 2 then
  nearest = now -- more is due than was read
else
  nearest = tonumber(redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2])
end
if nearest or opens then
  sleep = seconds(math.max(0, math.min(nearest or opens, opens or nearest) - now))
end
write_history(now)
return { seconds(now), sleep, moved, buried, missed, opens and seconds(math.max(0, opens - now)) or '' }
