#!lua flags=allow-oom
-- reschedule: schedule, backlog or ready -> schedule, with another due, or another payload, priority and group.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        due       score or '': Unix seconds, '' = `delay` from now
--        delay     score or '': seconds; '' = with an `edit`, its due stays
--        filter    see _match.lua: of the rows, only the jobs that wait and match; '' = none
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
--        edit      a random text, for a job whose description changes; '' = only its due does
--        was       with an `edit`: the digest of the description that the caller has read
--        payload   with an `edit`: JSON
--        priority  with an `edit`: 0 to 9, '' = the default
--        group     with an `edit`: '' = none
-- ROWS   id        of the job; one row, unless there is a filter; with an `edit`, not an inline job
-- REPLY  for each row the due, seconds; '' = it does not wait, or does not match
-- FAILS  MISSING   without a filter: no job of that id waits: it has ended, is dead, or never was
--        RUNNING   without a filter: a worker holds it
--        MOVING    without a filter: it is on its way to another shard
--        CHANGED   with an `edit`: its description is not the one that the caller has read, or it is dead, and has
--                  no due to change
-- TWICE  the second call sets the same due, or the delay from the later now; with an `edit`, it changes nothing
-- USES   clock, rows, seconds, expect, expect_gate, waiting_place, holder_of, field_of, fail, remove_waiting, admit,
--        read_filter, match_waiting, moving_due, IS_MOVING, note_act, record, valid_field, place_of, known_due,
--        MEMBER_MOST, field_size, whole_field
--
-- An edit changes the description of a job, and nothing else: its attempts, its recurrence and its row in the ledger
-- stay. A dead job stays dead. A job is not edited while a worker holds it, even if its id waits again,
-- since the record is that of the run. O(workers).

local now, due, delay, filter, act, edit, was, payload, priority, group = unpack(ARGV, 1, 10)
now, filter = clock(now), read_filter(filter)
if due == '' and delay ~= '' then
  due = seconds(now + tonumber(delay))
end

-- The digest of a job's description as `look` returns it; nil if it has none, or one longer than any that is edited.
local function digest_of(id)
  local size, parts = field_size(id, 'payload'), {}
  if type(size) ~= 'number' or size == 0 or size > MEMBER_MOST then
    return nil
  end
  for at, name in ipairs({ DESCRIPTION_FIELDS }) do
    local value = name == 'payload' and whole_field(id, name) or field_of(id, name)
    if value and valid_field[name] then
      value = valid_field[name](value)
    end
    parts[at] = value or ''
  end
  return redis.sha1hex(table.concat(parts, '\0'))
end

local changed = {}

-- Write a field; '' = delete it.
local function put(id, name, value)
  if value == '' then
    redis.call('HDEL', record(id), name)
  else
    redis.call('HSET', record(id), name, value)
  end
end

-- Edit a job, and return its due; or nil and the refusal.
local function edit_job(id)
  local place = place_of(id, field_of(id, 'worker'), field_of(id, 'finished'))
  local known, holder = known_due(id, now), holder_of(id, field_of(id, 'worker'))
  if place and field_of(id, 'edited') == edit then
    return known
  elseif moving_due(id) then
    return nil, fail('MOVING', id .. IS_MOVING)
  elseif holder then
    return nil, fail('RUNNING', id .. ' is held by worker ' .. holder)
  elseif not place or place == 'finished' then
    return nil, fail('MISSING', id .. ' neither waits nor is dead')
  elseif digest_of(id) ~= was or (place == 'dead' and due ~= '') then
    return nil, fail('CHANGED', id .. ' was changed meanwhile')
  elseif place ~= 'dead' then
    known = due ~= '' and due or known
    redis.call('ZADD', schedule, known, id)
    remove_waiting(id) -- before its group changes, under which it is counted
  end
  redis.call('HSET', record(id), 'payload', payload, 'edited', edit)
  put(id, 'priority', priority)
  put(id, 'group', group)
  changed[#changed + 1] = id
  return known
end

expect_gate()
if edit ~= '' then
  expect('ZCARD', dead, leases)
end
local dues = {}
for id in rows(11, 1) do
  if edit ~= '' then
    local known, refusal = edit_job(id)
    if refusal then
      return refusal
    end
    dues[#dues + 1] = known
  elseif filter and not match_waiting(id, filter) then
    dues[#dues + 1] = ''
  elseif filter or redis.call('ZSCORE', schedule, id) or waiting_place(id) then
    redis.call('ZADD', schedule, due, id)
    remove_waiting(id)
    record(id) -- only due jobs are light
    dues[#dues + 1] = due
    changed[#changed + 1] = id
  else
    local holder = holder_of(id, field_of(id, 'worker'))
    if moving_due(id) then
      return fail('MOVING', id .. IS_MOVING)
    elseif holder then
      return fail('RUNNING', id .. ' is held by worker ' .. holder)
    end
    return fail('MISSING', id .. ' is not on the schedule, in the backlog or ready')
  end
end
admit(0, now)
note_act(act, #changed, changed)
return dues
