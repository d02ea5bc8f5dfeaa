#!lua flags=allow-oom
-- cancel: schedule, backlog or ready -> gone. A worker that runs the job is asked to stop it.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        filter    see _match.lua: of the rows, only the jobs that wait and match; '' = none
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   id        of the job, or with a filter an inline job; one row, unless there is a filter or a `row`
--        row       for a job of the ledger that its row cancels: the number of the row. For a member of a batch, which
--                  must be this one: `<home>/<batch>/<ordinal>`, and `/<life>` and `/<turn>` as for `enqueue`. '' = any
--                  job
-- REPLY  for each row the place where it was; 'processing' = its worker is asked to stop it, by a message and by its
--        next heartbeat; '' = it does not wait, or does not match. Without a filter, also '1' = besides the run, a next
--        run that waited was cancelled; '' = there was none
-- FAILS  MISSING   without a filter and `row`: there is no such job, or it has ended or is dead
--        MOVING    without a filter: it is on its way to another shard
-- TWICE  the second call fails with MISSING, or asks the worker again; with a filter, it finds nothing
-- RARE   pause_if_failing, release_waiting, begin_count, judge_groups, reopen, spend, tokens, end_queue_pause,
--        note_turns
-- USES   clock, rows, record, acquit, expect, expect_gate, remove_waiting, holder_of, fail, push_reply, recurrence_of,
--        release_waiting, admit, unique, read_filter, match_waiting, is_inline, decode, digest, drop_next, row_of,
--        report_gone, field_of, wants_reply, REPLY_READ, moving_due, IS_MOVING, report_end, is_earlier, place_of,
--        seconds, note_act, add_end, group_of, is_id, note_history, write_history, label_of, abort, note_next,
--        member_reports, job_fields, record_key
--
-- Clients that wait for a reply get it. All jobs of the id end: a run, and a next run that was scheduled meanwhile. The
-- field `stop` in the record makes a run end as cancelled even if its worker dies. Unless the job runs, its id is free
-- for a unique job. If a dead job was scheduled again, it is dead as before. With a filter, only the job ends that
-- waits and matches: a run goes on, and a next run that another job of the id keeps waiting. O(workers) a job.
--
-- With `row`, a job is cancelled if it is that of this row, or of an earlier use of it. If Redis has none, because no
-- relay has scheduled it or Redis has lost it, the end is reported all the same, and a short record is left for clients
-- that wait. The end of a job that has ended is on its way. A job of the id that is not the ledger's is left alone.
--
-- A member of a batch that waited leaves a short record, so that a call that comes late does not enqueue it again. With
-- `row`, a member that is not there ends, too.

local now, filter, act = unpack(ARGV, 1, 3)
now, filter = clock(now), read_filter(filter)

expect('ZCARD', dead, leases)
expect_gate()

-- The reason that the ledger gets.
local CANCELLED = 'cancelled while it waited'

-- The short records of jobs that were cancelled. One table, since a script has at most 200 local names.
--
-- row     seconds for which the record stays of a job of the ledger that was cancelled before it came to Redis
-- member  that of a member of a batch: longer than its ordinal is reserved
local left = { row = '10', member = 60 }

-- Leave a short record of a member of a batch.
function left.mark(id, member, life)
  local fields = { 'batch', member, 'outcome', 'cancelled', 'reason', CANCELLED, 'finished', seconds(now) }
  if life and life ~= '' then
    fields[9], fields[10] = 'life', life
  end
  redis.call('HSET', record(id), unpack(fields))
  redis.call('PEXPIRE', record(id), 1000 * left.member)
end

-- Delete the record of a job that waited, and notify its clients.
local function forget(id, run)
  local key = record(id)
  if not run[2] then
    note_history(id, 'cancelled', now)
  end
  if wants_reply(id) then
    push_reply(id, 'cancelled', 'null', nil, 0)
  end
  local row = row_of(field_of(id, 'next_ledger')) or row_of(run[5])
  local is_member = run[6] and run[6]:find('^[%w._:@-]+/[%w._:@-]+/%d+')
  local life = is_member and field_of(id, 'life')
  redis.call('DEL', key)
  if is_member then
    left.mark(id, run[6], life)
  end
  acquit(id)
  if row then
    report_gone(id, row, 'cancelled', CANCELLED, now)
  end
  local name = recurrence_of(id, run[4])
  if name then
    release_waiting(name, id, now)
  end
end

-- Cancel the job that would have come after the run of an id. The end of the run is then that of its row, since the
-- row of the run has ended already; with a filter, the run is another job, and goes on.
local function cancel_next(id)
  local row = row_of(field_of(id, 'next_ledger'))
  if row and filter then
    report_end(id, row, 'cancelled', CANCELLED, '')
  elseif row then
    redis.call('HSET', record(id), 'ledger', row)
  end
  drop_next(id)
end

-- Returns the place where the job was, or nil; and whether it runs and a next run waited too.
local function cancel(id)
  local run = job_fields(id, 'worker', 'finished', 'reply', 'recurrence', 'ledger', 'batch')
  redis.call('HLEN', record_key(id)) -- refuses a key of another type before anything is written
  local key = record(id)
  local size = redis.call('HSTRLEN', key, 'payload')
  -- From all places: an id that waits may have been scheduled again.
  local place = remove_waiting(id)
  local scheduled = redis.call('ZREM', schedule, id) == 1
  place = scheduled and 'schedule' or place
  local holder = size > 0 and not run[2] and holder_of(id, run[1])
  local follows = not filter and redis.call('HDEL', key, 'again') == 1
  -- Another job that has the same record: as a run, as a job that waits too, or as a job that has ended.
  local other = place and (follows or run[2])
  if holder then
    other = holder == run[1] and (scheduled or follows)
  end
  if other then
    note_next(id, now)
  end
  place = follows and 'schedule' or place
  local waited = holder and place ~= nil
  if holder and (other or not filter) then
    redis.call('HDEL', key, 'again')
    cancel_next(id)
  end
  if holder and not filter then
    redis.call('HSET', key, 'stop', '1')
    redis.call('PUBLISH', root .. 'control:' .. holder, id)
    place = 'processing'
  end
  if place and not holder then
    redis.call('DEL', unique(id))
    if filter and field_of(id, 'again') then
      abort(id, CANCELLED, RETENTION, '', now) -- only this job; the next one follows
    elseif not redis.call('ZSCORE', dead, id) then
      -- The record of a dead job that was scheduled again stays the dead job's.
      forget(id, run)
    end
  end
  return place, waited
end

-- Cancel the job of a row of the ledger. Returns the place where it was, or ''.
local function cancel_row(id, row)
  local key, reason = record(id), 'cancelled in a transaction'
  if redis.call('EXISTS', key) == 0 then
    redis.call('HSET', key, 'ledger', row, 'outcome', 'cancelled', 'reason', reason, 'finished', seconds(now))
    report_end(id, row, 'cancelled', reason, left.row)
    return ''
  end
  local has_next = redis.pcall('HEXISTS', key, 'next_payload') == 1
  local ours = row_of(field_of(id, has_next and 'next_ledger' or 'ledger'))
  local place = place_of(id, field_of(id, 'worker'), field_of(id, 'finished'))
  local ended = place == 'finished' or place == 'dead'
  if ours == row and ended then
    return place
  elseif ours == row and not place then
    redis.call('DEL', key)
    report_gone(id, row, 'cancelled', reason, now)
    return ''
  end
  if ours and not ended and (ours == row or is_earlier(ours, row)) then
    place = cancel(id)
  end
  if ours ~= row then
    report_end(id, row, 'cancelled', reason, '')
  end
  return ours and place or ''
end

-- Cancel a member of a batch. If it is not there, it ends all the same, and is not enqueued any more.
function left.cancel_member(id, words)
  local member, life, turn = words:match('^([%w._:@-]+/[%w._:@-]+/%d+)/?(%w*)/?(%d*)$')
  if not member then
    return ''
  elseif redis.call('EXISTS', record(id)) == 0 then
    local address = turn == '' and member or member .. '/' .. turn
    left.mark(id, address, life)
    member_reports.note(address, 'c')
    return ''
  end
  local is_ours = (field_of(id, 'batch') or ''):match('^[^/]*/[^/]*/%d+') == member
    and (life == '' or field_of(id, 'life') == life)
  return is_ours and cancel(id) or ''
end

local function cancel_inline(member)
  redis.call('ZREM', schedule, member)
  local job = decode(member, REPLY_READ)
  local id, group = digest(member), job and job.group
  if job and type(job.id) == 'string' and is_id(job.id) then
    id = job.id
  end
  group = type(group) == 'string' and group_of(group) or nil
  add_end(id, 'cancelled', label_of(member), now, nil, nil, nil, nil, group)
  if job and job.reply == true then
    push_reply(id, 'cancelled', 'null', nil, 0)
  end
  return 'schedule'
end

local places, next_waited = {}, ''
local changed = {}
for id, row in rows(4, 2) do
  local place = ''
  if row:find('/', 1, true) then
    place = left.cancel_member(id, row)
  elseif row ~= '' then
    place = cancel_row(id, row)
  elseif not filter and is_inline(id) and type(redis.pcall('ZSCORE', schedule, id)) == 'string' then
    place = cancel_inline(id)
  elseif not filter then
    local waited
    place, waited = cancel(id)
    next_waited = waited and '1' or ''
  elseif match_waiting(id, filter) then
    place = is_inline(id) and cancel_inline(id) or cancel(id)
  end
  if not place and moving_due(id) then
    return fail('MOVING', id .. IS_MOVING)
  elseif not place then
    local why = ': it never existed, has ended, or was cancelled while it waited'
    return fail('MISSING', id .. ' does not wait and does not run' .. why)
  end
  places[#places + 1] = place
  if place ~= '' then
    changed[#changed + 1] = id
  end
end
if not filter then
  places[#places + 1] = next_waited
end
write_history(now)
admit(0, now)
note_act(act, #changed, changed)
return places
