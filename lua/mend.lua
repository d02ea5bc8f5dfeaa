#!lua flags=allow-oom
-- mend: nowhere -> schedule, for jobs that were lost; any place -> dead, for ids that are not valid and jobs without a
-- payload; and repairs other violations where no decision is needed.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        most      count: entries that are counted at most
--        strays    workers that have a list and no lease, separated by spaces
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   id        or group, '' = the queue
--        code      of the violation, as audit or recount reported it
--        from      where audit met it, ''
-- REPLY  for each violation that was repaired: id, code
-- FAILS  none
-- TWICE  the second call finds nothing wrong
-- USES   clock, expect, expect_gate, record, release_waiting, bury, remove_waiting, group_backlog, tidy, miscounts,
--        in_flight, throttled, group_violation, violations_of, rows, admit, misnamed_id, note_member, ID_RULE,
--        is_inline, group_of, listed_in, note_act, write_history
--
-- Each row is checked again here, before and after its repair: a violation that is still there was not repaired. Rows
-- that are in order by now, or that need a person's decision, are left alone.

local now, most, strays, act = unpack(ARGV, 1, 4)
now = clock(now)

-- How many jobs are kept, at most, whose id was the same one that is not valid.
local KEPT_MOST = 100

expect('ZCARD', dead)
expect_gate()

-- Remove an id from every place where it waits. `from`: where audit met it.
local function leave_places(id, from)
  while remove_waiting(id) do
  end
  listed_in(ready)[id] = nil
  local group = from:match('^backlog:(.*)$')
  if group then
    redis.call('ZREM', group_backlog(group), id)
    tidy(group)
  end
  if not is_inline(id) then
    redis.call('ZREM', schedule, id)
  end
end

-- The id under which an id that is not valid is kept: the first without a record, so that none is replaced; nil when
-- all have one. An id without a record needs none of its own.
local function free_id(id)
  local first = misnamed_id(id)
  local kept, tried = first, 1
  while redis.call('EXISTS', record(id), record(kept)) == 2 do
    tried = tried + 1
    if tried > KEPT_MOST then
      return nil
    end
    kept = first .. '-' .. tried
  end
  return kept
end

-- Each repairs one violation of an id, or returns false. `detail` is the audit's report beside the code.
local mends = {
  -- At its old due, so at once; its attempts are kept.
  orphan = function(id, due)
    redis.call('ZADD', schedule, 'NX', due, id)
    redis.call('HDEL', record(id), 'parked')
  end,
  -- To dead, as dispatch would do, under an id that is valid and that no record has.
  ['bad-id'] = function(id, place, from)
    local kept = free_id(id)
    if place == 'processing' or not kept then
      return false
    end
    leave_places(id, from)
    redis.call('ZREM', dead, id)
    if redis.call('EXISTS', record(id)) == 1 then
      redis.call('RENAME', record(id), record(kept))
      redis.call('HDEL', record(kept), 'parked') -- an empty or malformed one too
    elseif redis.call('EXISTS', record(kept)) == 1 then
      return
    end
    note_member(kept, id)
    bury(kept, 'dead', 'the id is ' .. ID_RULE, now)
  end,
  parked = function(id)
    redis.call('HDEL', record(id), 'parked')
  end,
  -- A group whose name no record may hold: the job goes back to the backlog, before the group's limits are asked again.
  unparked = function(id, group)
    if group ~= '' and group_of(group) then
      redis.call('HSET', record(id), 'parked', group)
    else
      redis.call('ZADD', backlog, 'NX', redis.call('ZSCORE', group_backlog(group), id), id)
      redis.call('ZREM', group_backlog(group), id)
      tidy(group)
    end
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
    release_waiting(name, nil, now)
  end,
  -- To dead, as dispatch or start would do; `start` handles jobs that a worker holds.
  ['no-record'] = function(id, place, from)
    if place == 'processing' then
      return false
    end
    bury(id, 'dead', 'it had no payload: HSET one into its record and revive it, or drop it', now)
    leave_places(id, from)
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

-- The detail that audit reports with a violation; nil when the id does not have that violation.
local function detail_of(id, code, from)
  for _, wrong in ipairs(violations_of(id, from, strays, now)) do
    if wrong[1] == code then
      return wrong[2]
    end
  end
end

-- The ids that a row before has repaired: that may have ended their other violations too.
local was_mended = {}

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
  local detail = mends[code] and detail_of(id, code, from)
  if not detail then
    return mends[code] and was_mended[id] or false
  end
  if mends[code](id, detail, from) == false then
    return false
  end
  -- It is a repair only if the violation is gone.
  was_mended[id] = not detail_of(id, code, from)
  return was_mended[id]
end

local mended, ids = {}, {}
for id, code, from in rows(5, 3) do
  if mend(id, code, from) then
    mended[#mended + 1] = id
    mended[#mended + 1] = code
    ids[#ids + 1] = id
  end
end
write_history(now)
admit(0, now)
note_act(act, #ids, ids)
return mended
