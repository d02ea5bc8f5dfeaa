#!lua
-- enqueue: nowhere -> schedule.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        conflict  for an id that is taken: '' = refuse, 'keep' = leave the job of that id unchanged, also one that has
--                  ended if it is the same member of a batch; 'node' = as 'keep', and if the job that is left is
--                  another than this member, nothing is reported to the batch, and the due in the reply is -1
--        within    number or '': for unique jobs: seconds from now for which the ids are taken, whatever becomes of the
--                  jobs; '0' = only while a job waits or runs. '' = not unique: then a dead job takes its id too
--        by        who enqueues: the user name at Redis, '' = the default user
--        key       of a request that is done once: the digest of its Idempotency-Key; '' = it has none
--        asked     with a `key`: the digest of the request; not compared here
--        since     number or '': of a call that is sent again because it may have been done: when it was sent first, or
--                  a moment before, Unix seconds. '' = it is sent for the first time, or has a `key`
--        batch     that the jobs are members of: `<home>/<batch>/<ordinal>/<until>`. The ordinal of the first row, then
--                  the next ones; and until when they are reserved, Unix seconds. '' = none. `/<life>` may follow: it
--                  differs from that of an earlier batch of the same id, whose records are no members then; and
--                  `/<turn>`, if nodes were revived without a job. Records of earlier turns are no members then
-- ROWS   id        1 to 200 of A-Z a-z 0-9 . _ : @ -
--        payload   JSON
--        priority  0 to 9, '' = the default
--        group     '' = none
--        due       score or '': Unix seconds, '' = `delay` from now
--        delay     score: seconds
-- REPLY  for each row the due, seconds; with a `key` one text, that of the first request of this key: its `asked`, and
--        the id and the due of each of its jobs, separated by spaces
-- FAILS  EXISTS    a job of that id has not ended, or is dead; or the id is taken for some time; then no row is written
--        LATE      the reservation of the ordinals is over; then no row is written
-- TWICE  with `since`, the second call leaves the jobs that the first has written. It writes a job again whose record
--        is gone (its retention is over, or it was cancelled or dropped) or is a later job's. Without `since`, it fails
--        with EXISTS, or keeps the jobs of the first. With a `key` it writes nothing and returns the reply of the first
-- RARE   fail, first_reply, unique, refusal_of, is_written, known_due, field_of, record, acquit, take, keep_dues,
--        member_reports
-- USES   clock, rows, fail, record, acquit, seconds, write_record, field_of, known_due, expect, unique, take,
--        whole_seconds, first_reply, keep_dues, is_written, refuse, member_reports, find_light, record_key, refusal_of
--
-- All rows are checked before the first is written. Redis refuses this script when its memory is full. One command for
-- all rows where there can be: one ZADD, so one keyspace event, and one EXISTS and one DEL, which take half of the time
-- that one for each row would. Where a job is, is looked up only if one of the ids has a record or is taken. A record
-- without a place takes no id, because no worker will ever find that job. Rows of the ledger have a verb of their own,
-- `relay`.

local now, conflict, within, by, key, asked, since, batch = unpack(ARGV, 1, 8)
now, since = clock(now), tonumber(since)
local members, ordinal, till, life, turn = batch:match('^([%w._:@-]+/[%w._:@-]+/)(%d+)/([%d.]+)/?(%w*)/?(%d*)$')
if batch ~= '' and not (tonumber(till) and #ordinal < 10 and #turn < 3) then
  refuse('batch', 'a valid batch')
end
local first = key ~= '' and first_reply(key)
if first then
  return first
end
local keeps = conflict ~= ''
if within ~= '' or keeps then
  expect('ZCARD', dead)
end

-- id -> its due if its row is to be written, else false
local new, records, ids = {}, {}, {}
for id in rows(9, 6) do
  if new[id] ~= nil and conflict == '' then
    return fail('EXISTS', id .. ' stands twice in this call')
  end
  new[id] = false
  ids[#ids + 1] = id
end
for _, id in ipairs(ids) do
  records[#records + 1] = record_key(id)
  if within ~= '' then
    records[#records + 1] = unique(id)
  end
end
local known = find_light(ids) or (#records > 0 and redis.call('EXISTS', unpack(records)) > 0)

-- The field `batch` of the job of a row.
local function member(at)
  return string.format('%s%d%s', members, ordinal + at, turn ~= '' and '/' .. turn or '')
end

-- Whether an earlier call has written the same member, whatever has become of it.
local function is_there(id, at)
  if not members then
    return false
  end
  local there, last = (field_of(id, 'batch') or ''):match('^([^/]*/[^/]*/%d+)/?(%d*)$')
  return there == member(at):match('^[^/]*/[^/]*/%d+')
    and (tonumber(last) or 0) >= (tonumber(turn) or 0)
    and (life == '' or field_of(id, 'life') == life)
end

local places, dues, old, written = {}, {}, {}, {}
local created, more = whole_seconds(now), by ~= '' and { by = by } or nil
-- Most rows have the same delay, and to format a number takes 0.5 us.
local due_after = {}
local row = -1
for id, payload, _, _, due, delay in rows(9, 6) do
  row = row + 1
  if since and known and written[id] == nil then -- the first of several rows of an id is the one that is written
    written[id] = is_written(id, payload, since) and (not members or field_of(id, 'batch') == member(row))
  end
  local refusal = known and not written[id] and (refusal_of(id, within, now) or (keeps and is_there(id, row)))
  if refusal and conflict == '' then
    return fail('EXISTS', refusal)
  elseif refusal or new[id] or written[id] then
    due = new[id] or known_due(id, now)
  else
    if due == '' then
      due_after[delay] = due_after[delay] or seconds(now + tonumber(delay))
      due = due_after[delay]
    end
    new[id] = due
    places[#places + 1] = due
    places[#places + 1] = id
    -- The reply of an earlier job of this id must not reach a client that waits for this one.
    old[#old + 1] = root .. 'reply:' .. id
    old[#old + 1] = known and record(id) or nil
  end
  dues[#dues + 1] = due
end

if members and #places > 0 and now > tonumber(till) then
  return fail('LATE', 'the ordinals ' .. batch .. ' are reserved no longer: add the jobs again')
end

-- The schedule first: ZADD refuses an invalid due, and a key of the wrong type, before it writes.
if #places > 0 then
  redis.call('ZADD', schedule, unpack(places))
  redis.call('DEL', unpack(old))
end
row = -1
for id, payload, priority, group in rows(9, 6) do
  row = row + 1
  if members then
    more = more or {}
    more.batch, more.life = member(row), life ~= '' and life or nil
  end
  if members and not (new[id] or written[id]) then
    local another = not is_there(id, row)
    if another and conflict == 'node' then
      dues[row + 1] = '-1'
    elseif another then
      member_reports.note(more.batch, 'm') -- another job of that id is kept
    end
  elseif new[id] then
    new[id] = false
    if known then
      acquit(id)
    end
    write_record(known and record(id) or record_key(id), payload, priority, group, created, more)
    if within ~= '' then
      redis.call('ZREM', dead, id)
      take(id, tonumber(within), now)
    end
  end
end
if members then
  member_reports.write(now)
end
return key == '' and dues or keep_dues(key, asked, dues, 9, 6, now)
