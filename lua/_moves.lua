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

-- What follows the id in a refusal, code MOVING.
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
