#!lua flags=allow-oom
-- mend: nowhere -> schedule, for jobs that were lost; and repairs violations where no decision is needed.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        most      entries that are counted at most
--        strays    workers that have a list and no lease, separated by spaces
-- ROWS   id        or group, '' = the queue
--        code      what is wrong with it, as audit or recount reported
--        from      where audit met it, ''
-- REPLY  for each thing that was mended: id, code
-- FAILS  none
-- TWICE  the second call finds nothing wrong
-- USES   clock, expect, expect_gate, record, release_waiting, is_id, bury, remove_waiting, group_backlog, tidy,
--        miscounts, in_flight, throttled, group_violation, violations_of, rows, admit
--
-- Each row is checked again here. Rows that are in order by now, or that need a person's decision, are left alone.

local now, most, strays = unpack(ARGV, 1, 3)
now = clock(now)

expect('ZCARD', dead)
expect_gate()

local mends = {
  -- At its old due, so at once; its attempts are kept.
  orphan = function(id, due)
    redis.call('ZADD', schedule, 'NX', due, id)
    redis.call('HDEL', record(id), 'parked')
  end,
  parked = function(id)
    redis.call('HDEL', record(id), 'parked')
  end,
  unparked = function(id, group)
    redis.call('HSET', record(id), 'parked', group)
  end,
  ['dead-without-record'] = function(id)
    redis.call('ZREM', dead, id)
  end,
  ['stale-dead'] = function(id)
    redis.call('ZREM', dead, id)
  end,
  ['record-expires'] = function(id)
    redis.call('PERSIST', record(id))
  end,
  stuck = function(_, name)
    release_waiting(name)
  end,
  -- To dead, as dispatch or start would do; `start` handles those that a worker holds.
  ['no-record'] = function(id, place)
    if place == 'processing' or not is_id(id) then
      return false
    end
    bury(id, 'dead', 'it had no payload: HSET one into its record and revive it, or drop it', now)
    remove_waiting(id)
    local group = place:match('^backlog:(.*)$')
    if group then
      redis.call('ZREM', group_backlog(group), id)
      tidy(group)
    end
    redis.call('ZREM', schedule, id)
  end,
}

-- The gate's counts: all at once, at the first row that needs them.
local was_counted
local function count_again()
  if was_counted then
    return true
  end
  local changes = miscounts(strays, tonumber(most)) or {}
  for i = 1, #changes, 2 do
    local field, value = changes[i], changes[i + 1]
    if value then
      redis.call('HSET', in_flight, field, value)
    else
      redis.call('HDEL', in_flight, field)
    end
    if field:byte() == 35 then -- #: the group's gate may be open now
      redis.call('ZADD', throttled, 'XX', 0, field:sub(2))
    end
  end
  was_counted = #changes > 0
  return was_counted
end

local function mend(id, code, from)
  if code == 'in_flight' then
    return count_again()
  elseif code == 'stranded' or code == 'throttled' then
    if group_violation(id) ~= code then
      return false
    elseif code == 'stranded' then
      redis.call('ZADD', throttled, 0, id)
    else
      tidy(id)
    end
    return true
  end
  for _, wrong in ipairs(violations_of(id, from, strays, now)) do
    if wrong[1] == code and mends[code] then
      return mends[code](id, wrong[2]) ~= false
    end
  end
  return false
end

local mended = {}
for id, code, from in rows(4, 3) do
  if mend(id, code, from) then
    mended[#mended + 1] = id
    mended[#mended + 1] = code
  end
end
admit(0, now)
return mended
