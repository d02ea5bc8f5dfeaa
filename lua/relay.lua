#!lua
-- relay: nowhere, or anywhere for an earlier job of the same row -> schedule. Jobs of the ledger.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
-- ROWS   id        1 to 200 of A-Z a-z 0-9 . _ : @ -
--        payload   JSON
--        priority  0 to 9, '' = the default
--        group     '' = none
--        due       score: Unix seconds
--        row       the number of its row
--        revision  count or '': how often its due was changed in the row, '' = never
-- REPLY  for each row '', or why its job cannot be scheduled: then nothing was written for it
-- FAILS  none
-- TWICE  the second call changes nothing
-- USES   clock, rows, expect, expect_gate, record, field_of, place_of, row_of, is_earlier, acquit, write_record,
--        whole_seconds, supplant, admit, remove_waiting, waiting_place
--
-- A row comes again when a relay does not know whether another has scheduled it. If the record has its number, it is
-- the same job, wherever it is, and is kept. A lower number belongs to a job that has ended, as the table says, and
-- that Redis still has, because it has lost its last writes or the row was deleted and inserted again: the new job
-- takes its place, or runs after it if it runs. A job that is not the ledger's is left alone, unless it has ended or is
-- dead. Where a job is, is looked up only if one of the ids has a record. Redis refuses this script when its memory is
-- full. Without rows, it only checks that the queue takes rows.
--
-- A row whose due was changed comes again with a higher revision. If its job waits, it gets that due; if it runs, it
-- goes on. The record says which revision it has seen, so that one which comes again undoes no later change in Redis.

local now = unpack(ARGV, 1, 1)
now = clock(now)
expect('ZCARD', dead)

local records = {}
for id in rows(2, 7) do
  records[#records + 1] = record(id)
end
local known = #records > 0 and redis.call('EXISTS', unpack(records)) > 0
if known or #records == 0 then
  expect_gate()
end

-- Has the job's record seen this revision of its row?
local function has_seen(id, row, revision)
  local of, seen = (field_of(id, 'revised') or ''):match('^(%d+):(%d+)$')
  return of == row and tonumber(seen) >= tonumber(revision)
end

-- The result for a row: 'new', 'kept', 'moved' to another due, 'instead' of the job that Redis has, or 'refused' with
-- a reason.
local function judge(id, row, revision)
  if not known or redis.call('EXISTS', record(id)) == 0 then
    return 'new'
  end
  local ours, finished = row_of(field_of(id, 'ledger')), field_of(id, 'finished')
  local place = place_of(id, field_of(id, 'worker'), finished)
  local ended = place == 'finished' or place == 'dead'
  if place and not ended and redis.call('HEXISTS', record(id), 'next_payload') == 1 then
    ours = row_of(field_of(id, 'next_ledger'))
  end
  if place and ours == row then
    return revision ~= '' and not ended and not has_seen(id, row, revision) and 'moved' or 'kept'
  elseif not place or ended then
    return 'instead'
  elseif not ours or finished then -- finished: a client used the id again, by a ZADD
    return 'refused', 'its id belongs to a job in Redis that is not of this ledger, and has not ended'
  elseif is_earlier(row, ours) then
    return 'refused', 'Redis has a job of this id with a later row number, ' .. ours .. ', that has not ended'
  end
  return 'instead'
end

local verdicts, replies, places, old = {}, {}, {}, {}
for id, _, _, _, due, row, revision in rows(2, 7) do
  local verdict, reason = judge(id, row, revision)
  verdicts[#verdicts + 1] = verdict
  replies[#replies + 1] = reason or ''
  local waits = verdict == 'moved' and (redis.call('ZSCORE', schedule, id) or waiting_place(id))
  if verdict == 'new' or verdict == 'instead' or waits then
    places[#places + 1] = due
    places[#places + 1] = id
  end
  if verdict == 'new' then
    old[#old + 1] = root .. 'reply:' .. id
  end
end

-- The schedule first: ZADD refuses an invalid due, and a key of the wrong type, before it writes.
if #places > 0 then
  redis.call('ZADD', schedule, unpack(places))
end
if #old > 0 then
  redis.call('DEL', unpack(old))
end
local created, at = whole_seconds(now), 0
for id, payload, priority, group, _, row, revision in rows(2, 7) do
  at = at + 1
  if verdicts[at] == 'new' then
    acquit(id)
    write_record(record(id), payload, priority, group, created, { ledger = row })
    if known then
      redis.call('ZREM', dead, id)
    end
  elseif verdicts[at] == 'instead' then
    supplant(id, payload, priority, group, now, { ledger = row }, row)
  elseif verdicts[at] == 'moved' then
    remove_waiting(id)
  end
  if revision ~= '' and verdicts[at] ~= 'kept' and verdicts[at] ~= 'refused' then
    redis.call('HSET', record(id), 'revised', row .. ':' .. revision)
  end
end
if known then
  admit(0, now)
end
return replies
