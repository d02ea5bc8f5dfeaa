-- Places: where a job is, and how a due job is taken out of the place where it waits.

-- Whether a queue, by the prefix of its keys, has any place, worker, recurrence or limit. A queue that Redis refuses to
-- read has.
local function has_any(prefix)
  return redis.pcall(
    'EXISTS',
    prefix .. 'schedule',
    prefix .. 'backlog',
    prefix .. 'throttled',
    prefix .. 'ready',
    prefix .. 'dead',
    prefix .. 'leases',
    prefix .. 'moving',
    prefix .. 'recurrences',
    prefix .. 'pauses',
    prefix .. 'limits',
    prefix .. 'parents',
    prefix .. 'ends'
  ) ~= 0
end

-- busy_leases  hash  worker -> the seconds of its lease while it holds jobs, as the worker says. Dispatchers judge it
--                    by that: the lease in Redis may have changed since the worker read it.
local busy_leases = root .. 'busy_leases'

-- Does the worker hold the job? Only its list proves it: a record may contain anything.
-- USES processing
local function holds(worker, id)
  return worker and type(redis.pcall('LPOS', processing(worker), id)) == 'number'
end

-- The worker that holds the job in its list, or nil; `named` is the one in the record. A job that was fetched and not
-- started yet has no worker in its record: then all lists are searched, O(workers).
-- USES worker_of, holds
local function holder_of(id, named)
  named = worker_of(named)
  if holds(named, id) then
    return named
  end
  for _, worker in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    if worker ~= named and holds(worker, id) then
      return worker
    end
  end
end

-- The group in whose backlog the job waits, and its order there; nil when it is in none.
-- USES group_of, field_of, group_backlog
local function throttled_in(id)
  local group = group_of(field_of(id, 'parked'))
  local score = group and redis.pcall('ZSCORE', group_backlog(group), id)
  if type(score) == 'string' then
    return group, score
  end
end

-- Delete what describes jobs that have left: a group's entry in `throttled` once its backlog is empty, and the state of
-- the fair queueing once no job waits.
-- USES group_backlog, throttled, fair
local function tidy(group)
  if group and redis.call('EXISTS', group_backlog(group)) == 0 then
    redis.call('ZREM', throttled, group)
  end
  if redis.call('EXISTS', backlog, throttled) == 0 then
    redis.call('DEL', fair)
  end
end

-- Where a due job waits: 'backlog', 'ready' or nil.
-- USES throttled_in
local function waiting_place(id)
  if redis.call('ZSCORE', backlog, id) or throttled_in(id) then
    return 'backlog'
  end
  return redis.call('LPOS', ready, id) and 'ready' or nil
end

-- Remove a due job from where it waits. Returns that place, or nil.
-- USES field_of, throttled_in, record, group_backlog, tidy, leave
local function remove_waiting(id)
  if field_of(id, 'parked') then
    local group = throttled_in(id)
    redis.call('HDEL', record(id), 'parked')
    if group then
      redis.call('ZREM', group_backlog(group), id)
      tidy(group)
      return 'backlog'
    end
  end
  if redis.call('ZREM', backlog, id) == 1 then
    tidy()
    return 'backlog'
  end
  if redis.call('LREM', ready, 1, id) == 1 then
    leave(id)
    return 'ready'
  end
end

-- Return jobs that had passed the gate to the backlog, before all others of their priority and in their order.
-- USES priority_of, field_of, STRIDE, leave
local function return_to_backlog(ids)
  for i, id in ipairs(ids) do
    local priority = priority_of(field_of(id, 'priority')) or 5
    redis.call('ZADD', backlog, 'NX', -priority * STRIDE + i / (#ids + 1), id)
    leave(id)
  end
end

-- The place of a job and its score there; nil when it is nowhere. A job that moves to another shard counts as on the
-- schedule. Processing is asked before the schedule: an id that
-- runs may be scheduled again already. `worker` and `finished` are fields of its record.
-- USES holds, worker_of, waiting_place, throttled_in, holder_of, moving_due
local function place_of(id, worker, finished)
  if holds(worker_of(worker), id) then
    return 'processing'
  end
  -- In this order: a dead job that was scheduled again waits.
  for _, place in ipairs({ 'schedule', 'dead' }) do
    local score = redis.call('ZSCORE', root .. place, id)
    if score then
      return place, score
    end
  end
  local due = moving_due(id)
  if due then
    return 'schedule', due
  end
  local place = waiting_place(id)
  if place == 'backlog' then
    local _, score = throttled_in(id)
    return place, score or redis.call('ZSCORE', backlog, id)
  end
  -- Last, a job that a worker has fetched and not started yet.
  return place or (finished and 'finished') or (holder_of(id, worker) and 'processing')
end

-- When the job of an id is due, or was; now if that is unknown.
-- USES moment_of, field_of, seconds, moving_due
local function known_due(id, now)
  return redis.call('ZSCORE', schedule, id) or moving_due(id) or moment_of(field_of(id, 'due')) or seconds(now)
end

-- Moves between the shards of a queue, each of which is a queue with keys in another slot: a batch of jobs at a time.
--
-- moving   hash  member of the schedule -> its due, for each job of the batch that has left the schedule and may have
--                arrived at the other queue or not; '*' -> the batch's number, its token, since when it moves and the
--                name of the other queue
-- arrived  hash  another queue -> JSON: the number and the token of the last batch that came from it, and a list of the
--                jobs that could not come, because their ids were taken here
--
-- At most one batch leaves a queue at a time, and its number is higher than that of the one before. So the queue that
-- receives batches need remember only the last one: a call of an earlier one, however late, has a lower number. The
-- token, which is random, tells two batches apart that have the same number, because Redis's clock was set back.

local moving, arrived = root .. 'moving', root .. 'arrived'

-- The text after the id in a refusal, code MOVING.
local IS_MOVING = ' is being moved to another shard: try again'

-- The due of a job that moves to another queue; nil when it does not. pcall: a key of another type has no jobs.
-- USES moving
local function moving_due(member)
  local due = redis.pcall('HGET', moving, member)
  return type(due) == 'string' and due or nil
end

-- The batch that leaves this queue: number, token, since when, and where it goes; nil when there is none.
-- USES moving_due
local function moving_batch()
  return (moving_due('*') or ''):match('^(%d+) (%S+) (%S+) (%S+)$')
end

-- Is a job of this id anywhere else than on the schedule? `worker` and `due` are fields of its record: only a job that
-- was dispatched before can be in a worker's list, and only for those all lists are searched, O(workers).
-- USES waiting_place, holder_of
local function lies_elsewhere(id, worker, due)
  return redis.call('ZSCORE', dead, id) or waiting_place(id) or ((worker or due) and holder_of(id, worker))
end

-- Jobs that wait for a named window.
--
-- deferred:<window>  zset  id -> its due. A note is a hint: it is valid while the job is on the schedule at that due.

local function deferred(window)
  return root .. 'deferred:' .. window
end

-- Note that a job waits for a window; two notes that have passed are deleted. pcall: a note that cannot be written must
-- not stop the deferral.
-- USES deferred, seconds, milliseconds
local function note_deferred(window, id, due, now)
  local notes = deferred(window)
  if type(redis.pcall('ZADD', notes, due, id)) ~= 'number' then
    return
  end
  for _, old in ipairs(redis.call('ZRANGE', notes, '-inf', '(' .. seconds(now), 'BYSCORE', 'LIMIT', 0, 2)) do
    redis.call('ZREM', notes, old)
  end
  local last = tonumber(redis.call('ZRANGE', notes, -1, -1, 'WITHSCORES')[2])
  if last then
    redis.call('PEXPIRE', notes, milliseconds(math.max(0, last - now) + 60))
  end
end
