-- Recurrences: what the verbs of jobs need to know of them.
--
-- recurrences        zset  name -> the planned time that is put on the schedule next, Unix seconds; 0 = from now on
-- recurrence:<name>  hash  rule, zone, payload and the rest of what is declared; what came of it: made, runs, missed,
--                          last_id, last_outcome, last_finished, last_lateness; the ids of occurrences: current,
--                          waiting, ahead; and moved, when it was last moved on
-- declared:<owner>   set   names of the recurrences that an app declares in its code

-- Is an occurrence on its way, or does it run?
-- USES place_of, fields_of, record
local function unended(id)
  local run = fields_of(record(id), 'worker', 'finished', 'payload')
  return not run.err and run[3] and not run[2] and place_of(id, run[1], run[2])
end

-- The ids of the occurrences that are on the schedule ahead of their time.
-- USES recurrence, occurrence_of
local function ahead_of(name)
  local ids = {}
  for id in (redis.call('HGET', recurrence(name), 'ahead') or ''):gmatch('%S+') do
    if occurrence_of(name, id) and redis.call('ZSCORE', schedule, id) then
      ids[#ids + 1] = id
    end
  end
  return ids
end

-- Remove those from the schedule: the recurrence was changed, paused or removed.
-- USES ahead_of, record, recurrence
local function withdraw(name)
  for _, id in ipairs(ahead_of(name)) do
    redis.call('ZREM', schedule, id)
    redis.call('DEL', record(id))
  end
  redis.call('HDEL', recurrence(name), 'ahead', 'waiting')
end

-- Decide what becomes of an occurrence that is due. 'go': it runs. 'skip': it is dropped, because it was missed or the
-- one before has not ended. 'wait': it waits until that one has ended. An occurrence that has run before (it is
-- retried, or was revived) always gets 'go': it was judged the first time.
-- USES recurrence, moment_of, attempt_of, occurrence_of, unended, field_of, fields_of, record
local function judge_occurrence(name, id, due, now)
  local key = recurrence(name)
  local found = redis.pcall('HMGET', key, 'overlap', 'current', 'waiting', 'misfire', 'ahead')
  local run = fields_of(record(id), 'planned', 'misfire_grace', 'attempt')
  local planned, misfire_grace = tonumber(moment_of(run[1])), tonumber(moment_of(run[2]))
  if found.err or redis.call('EXISTS', key) == 0 or attempt_of(run[3]) > 0 or not planned then
    return 'go'
  elseif not (' ' .. (found[5] or '') .. ' '):find(' ' .. id .. ' ', 1, true) then
    return 'go' -- its record was not written by `recur`
  end
  local overlap, misfire, ahead = found[1] or 'skip', found[4] or 'once', found[5]
  local current, waiting = occurrence_of(name, found[2]), occurrence_of(name, found[3])
  if misfire_grace and misfire ~= 'all' and now - tonumber(due) > misfire_grace and waiting ~= id then
    -- Late by more than its grace. Of several such occurrences only the newest runs, or none.
    local newer = tonumber(redis.call('ZSCORE', recurrences, name) or 'inf') <= now
    for other in (ahead or ''):gmatch('@(%S+)') do
      local at = tonumber(other)
      newer = newer or (at and at > planned and at <= now)
    end
    if misfire == 'skip' or newer then
      return 'skip'
    end
  end
  if overlap ~= 'allow' and current and current ~= id and unended(current) then
    if overlap == 'wait' and (waiting == id or not waiting or not redis.call('ZSCORE', schedule, waiting)) then
      redis.call('HSET', key, 'waiting', id)
      return 'wait'
    end
    return 'skip'
  end
  redis.call('HSET', key, 'current', id)
  if waiting then
    redis.call('HDEL', key, 'waiting')
    if waiting ~= id then
      -- Another one still waits: the record of the run that it waited for was deleted, so no end has released it.
      redis.call('ZADD', schedule, 'XX', moment_of(field_of(waiting, 'planned')) or now, waiting)
    end
  end
  return 'go'
end
