-- The ends of jobs and of their runs: their writes to the record, the reply list, the recurrence and the ledger.

-- The dead set is bounded, so that a broken producer cannot fill Redis: beyond either bound the oldest jobs go.
local DEAD_MOST = 100000
local DEAD_AGE = 180 * 86400

-- When a record is created, as text without a fraction: Redis stores such a number in 6 bytes.
local function whole_seconds(now)
  return string.format('%d', now)
end

-- Write the fields that describe a new job to the record `key`; '' = not given. `created`: see `whole_seconds`. `more`:
-- the other fields by their names; nil = none. `prefix`: stands before all names; may be left out.
local function write_record(key, payload, priority, group, created, more, prefix)
  if priority == '' and group == '' and not more and not prefix then
    redis.call('HSET', key, 'payload', payload, 'created', created)
    return
  elseif priority == '' and group == '' and not prefix and next(more) == 'batch' and not next(more, 'batch') then
    redis.call('HSET', key, 'payload', payload, 'created', created, 'batch', more.batch)
    return
  end
  prefix = prefix or ''
  local fields = { prefix .. 'payload', payload, prefix .. 'created', created }
  local function add(name, value)
    if value ~= '' then
      fields[#fields + 1] = prefix .. name
      fields[#fields + 1] = value
    end
  end
  add('priority', priority)
  add('group', group)
  for name, value in pairs(more or {}) do
    add(name, value)
  end
  redis.call('HSET', key, unpack(fields))
end

-- Whether a call that was sent first at `since`, and is sent again, has already written the job: its record is not
-- older and has the same payload, and its last run did not begin before. So even if another client's call has written
-- it, a job of this payload runs after `since`.
-- USES field_of, moment_of, place_of, field_size, whole_field
local function is_written(id, payload, since)
  local created, started = moment_of(field_of(id, 'created')), moment_of(field_of(id, 'started'))
  return created ~= nil
    and tonumber(created) >= math.floor(since)
    and not (started and tonumber(started) < since)
    and field_size(id, 'payload') == #payload
    and whole_field(id, 'payload') == payload
    and place_of(id, field_of(id, 'worker'), field_of(id, 'finished')) ~= nil
end

-- Push a job's outcome to its reply list, of which clients read the first. `result` is JSON text. The list is kept as
-- long as the record, and at least 10 s, so that a client that comes late or reconnects still finds it.
-- USES milliseconds
local function push_reply(id, outcome, result, reason, retention)
  local text = '{"id":"' .. id .. '","outcome":"' .. outcome .. '","result":' .. result
  if reason then
    text = text .. ',"reason":' .. cjson.encode(reason)
  end
  local reply = root .. 'reply:' .. id
  -- pcall: no client can wait on a key of another type, and the job must end all the same.
  if type(redis.pcall('LPUSH', reply, text .. '}')) == 'number' then
    redis.call('PEXPIRE', reply, milliseconds(math.max(retention, 10)))
  end
end

-- Raise a count in a recurrence's record, which is a hash. A malformed count restarts at 0: if HINCRBY failed,
-- the job could not end.
-- USES recurrence
local function tally(name, field, more)
  if type(redis.pcall('HINCRBY', recurrence(name), field, more)) ~= 'number' then
    redis.call('HSET', recurrence(name), field, more)
  end
end

-- An occurrence of a recurrence has ended that counts its interval from the end of each run: plan the next one, unless
-- one is on the schedule. A score of +inf marks a recurrence that is over, paused or retired.
-- USES ahead_of, seconds
local function plan_after_end(name, rule, now)
  local every = tonumber((rule or ''):match('^%s*every%s+([%d.]+)%s*$') or '')
  local score = tonumber(redis.pcall('ZSCORE', recurrences, name))
  if every and score and score > 0 and score < math.huge and not ahead_of(name)[1] then
    redis.call('ZADD', recurrences, seconds(now + every), name)
  end
end

-- An occurrence has ended: dispatch the one that waits for its end, begin the next requested run, and plan the next one
-- if that is counted from here.
-- USES occurrence_of, recurrence, moment_of, field_of, begin_requests, plan_after_end
local function release_waiting(name, id, now)
  local found = redis.pcall('HMGET', recurrence(name), 'waiting', 'overlap', 'current', 'after', 'rule')
  local waiting = not found.err and occurrence_of(name, found[1])
  if waiting then
    redis.call('ZADD', schedule, 'XX', moment_of(field_of(waiting, 'planned')) or '0', waiting)
  end
  if found[2] == 'allow' or found[3] == id then
    begin_requests(name, 1, now)
  end
  if found[4] == 'end' then
    plan_after_end(name, found[5], now)
  end
end

-- A job has ended for good. If it is an occurrence, its recurrence keeps the outcome, and is paused if it has failed
-- too often in a row. If it is the ledger's, the end is reported, and this returns true: the record is kept until
-- `settle`. `retention`: for how long it is kept after that; '' = it is dead.
-- USES recurrence_of, moment_of, recurrence, tally, seconds, pause_if_failing, release_waiting, row_of, report_end,
--      job_fields
local function note_end(id, outcome, now, reason, retention)
  local run = job_fields(id, 'recurrence', 'due', 'started', 'ledger')
  local row = row_of(run[4])
  if row then
    report_end(id, row, outcome, reason, retention)
  end
  local name, due, started = recurrence_of(id, run[1]), moment_of(run[2]), moment_of(run[3])
  local key = recurrence(name or '')
  if not name or redis.call('TYPE', key).ok ~= 'hash' then
    return row ~= nil
  end
  tally(name, 'runs', 1)
  local ended = seconds(now)
  local success = outcome == 'done' and 'last_success' or 'last_finished' -- one command for both
  redis.call('HSET', key, 'last_id', id, 'last_outcome', outcome, 'last_finished', ended, success, ended)
  if due and started then
    redis.call('HSET', key, 'last_lateness', seconds(started - due))
  end
  if outcome == 'done' then
    tally(name, 'done', 1)
    redis.call('HDEL', key, 'failing')
  elseif outcome ~= 'cancelled' then
    tally(name, 'failed', 1)
    tally(name, 'failing', 1)
    pause_if_failing(name, now)
  end
  release_waiting(name, id, now)
  return row ~= nil
end

-- Bytes of the longest reason that is read: workers write at most 2,000 characters, but a producer may write anything.
local REASON_MOST = 16384

-- Why the last attempt of a job failed; nil if it has had none, or has ended since.
-- USES REASON_MOST, field_of, attempt_of, field_size, whole_field
local function last_failure(id)
  if attempt_of(field_of(id, 'attempt')) == 0 or field_of(id, 'finished') then
    return nil
  end
  local field = field_of(id, 'failure') and 'failure' or 'reason'
  local size = field_size(id, field)
  return size > 0 and size <= REASON_MOST and whole_field(id, field) or nil
end

-- The reason of a job that is given up before its next run begins: it also says why the last attempt failed, whose
-- traceback and class are kept.
-- USES last_failure, size_of, record
local function with_failure(id, reason)
  if size_of('HLEN', record(id)) == 0 then
    return reason -- it has no record, or a key of another type
  end
  local failure = last_failure(id)
  if not failure then
    redis.call('HDEL', record(id), ATTEMPT_FIELDS)
    return reason
  end
  return reason .. '; before that: ' .. failure
end

-- Store the exception of a failed run: its traceback, its class, and the line that raised it; '' = none.
-- USES record
local function note_raised(id, trace, error, location)
  if trace ~= '' then
    redis.call('HSET', record(id), 'traceback', trace)
  end
  if error ~= '' then
    redis.call('HSET', record(id), 'error', error)
  end
  if location ~= '' then
    redis.call('HSET', record(id), 'location', location)
  end
end

-- Put a job into the dead set; `outcome` is 'dead' or 'expired'. The caller then removes it from the place it was in.
-- USES note_end, note_history, acquit, record, seconds, DEAD_MOST, DEAD_AGE
local function bury(id, outcome, reason, now)
  note_history(id, outcome, now)
  note_end(id, outcome, now, reason, '')
  acquit(id)
  redis.call('HSET', record(id), 'outcome', outcome, 'reason', reason, 'finished', seconds(now))
  redis.call('HDEL', record(id), 'failure')
  redis.call('PERSIST', record(id))
  redis.call('ZADD', dead, seconds(now), id)
  local oldest = redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')
  if redis.call('ZCARD', dead) > DEAD_MOST or tonumber(oldest[2]) < now - DEAD_AGE then
    if not redis.call('ZSCORE', schedule, oldest[1]) then
      redis.call('DEL', record(oldest[1]))
    end
    redis.call('ZREM', dead, oldest[1])
  end
end

-- Does the schedule have another job than the one that runs, under the same id? Its fields have `next_` before their
-- names, see `drop_next`. While a retry of the present job waits, the schedule has that, and `again` the next due.
-- USES holds, worker_of, field_of, record_key
local function is_next(id)
  return redis.pcall('HEXISTS', record_key(id), 'next_payload') == 1 and holds(worker_of(field_of(id, 'worker')), id)
end

-- Delete the description of the job that runs after the run of the same id: `supplant` has written it. Until that run
-- has ended for good, its fields have `next_` before their names, since its retries are of the job that it began with.
-- USES record
local function drop_next(id)
  local names = { DESCRIPTION_FIELDS }
  for i, name in ipairs(names) do
    names[i] = 'next_' .. name
  end
  redis.call('HDEL', record(id), unpack(names))
end

-- The next job of this id takes the place of the one that has ended, if there is one.
-- USES record, drop_next
local function take_next(id)
  local key = record(id)
  if redis.call('HEXISTS', key, 'next_payload') == 0 then
    return -- another client has scheduled the id again
  end
  for _, name in ipairs({ DESCRIPTION_FIELDS }) do
    local value = redis.call('HGET', key, 'next_' .. name)
    if value then
      redis.call('HSET', key, name, value)
    else
      redis.call('HDEL', key, name)
    end
  end
  drop_next(id)
end

-- Put a job in the place of the one that has its id, wherever that is; the caller puts it on the schedule. A run goes
-- on, with its retries, and the new job runs afterwards: its attempts are counted from 0. `more`: see `write_record`;
-- it has the number of the new job's row in the ledger, '' = none. `next_row`: the same, if the job runs afterwards;
-- then it is in no batch either.
-- USES fields_of, record, remove_waiting, holds, worker_of, drop_next, whole_seconds, acquit, write_record, holder_of,
--      processing, leave
local function supplant(id, payload, priority, group, now, more, next_row)
  local key, created = record(id), whole_seconds(now)
  local run = fields_of(key, 'worker', 'finished', 'reply', 'due')
  local waited = remove_waiting(id)
  redis.call('ZREM', dead, id)
  if holds(worker_of(run[1]), id) then
    redis.call('HDEL', key, 'again')
    drop_next(id)
    more.ledger, more.batch, more.life = next_row, nil, nil
    write_record(key, payload, priority, group, created, more, 'next_')
    return
  end
  local fetched = run[4] and not run[2] and not waited and holder_of(id, nil)
  if fetched then
    redis.call('LREM', processing(fetched), 1, id) -- not started yet, so it need not run besides the new one
    leave(id)
  end
  redis.call('DEL', key)
  acquit(id)
  if run[2] then
    -- The reply of an earlier job of this id must not reach a client that waits for this one.
    redis.call('DEL', root .. 'reply:' .. id)
  elseif run[3] then
    redis.call('HSET', key, 'reply', run[3])
  end
  write_record(key, payload, priority, group, created, more)
end

-- Reset the record of a job that has ended, because its id is used again. The data that its runs have kept stays, for a
-- job that is revived. The reply of the earlier life must not reach a client that waits for this one.
-- USES record, drop_next
local function reuse(id)
  redis.call('DEL', root .. 'reply:' .. id)
  redis.call('PERSIST', record(id))
  redis.call('HDEL', record(id), END_FIELDS)
  redis.call('HDEL', record(id), JOB_FIELDS)
  drop_next(id)
  redis.call('ZREM', dead, id)
end

-- Reset the record when a run ends and its id was scheduled again meanwhile. `again` is the due time of the new job if
-- it was dispatched during the run; nil if it is on the schedule. The reply of the run is kept for 10 s,
-- whatever its retention is: a client that asks later waits for the new job.
-- USES record, take_next, acquit, again_of
local function begin_next(id, again)
  redis.call('PEXPIRE', root .. 'reply:' .. id, 10000)
  take_next(id)
  redis.call('HDEL', record(id), 'again', JOB_FIELDS, WORK_FIELDS)
  acquit(id)
  if again then
    redis.call('ZADD', schedule, 'LT', again_of(again), id)
  end
end

-- Bytes of the longest payload that is read for its `reply`; no job that runs has a longer one.
local REPLY_READ = 1048576

-- Whether a client waits for the job's reply, as its record or its payload says.
-- USES field_of, REPLY_READ, field_size, whole_field
local function wants_reply(id)
  if field_of(id, 'reply') then
    return true
  end
  local size = field_size(id, 'payload')
  local is_read = type(size) == 'number' and size <= REPLY_READ
  local good, payload = pcall(cjson.decode, is_read and whole_field(id, 'payload') or '')
  return good and type(payload) == 'table' and payload.reply == true
end

-- End a job as cancelled. Its record is kept, or reset if the id was scheduled again. The caller then removes the job
-- from the place it was in. `reply`: '1' = the caller knows that a client waits.
-- USES note_end, note_history, acquit, record, push_reply, wants_reply, begin_next, seconds, milliseconds, field_of
local function abort(id, reason, retention, reply, now)
  note_history(id, 'cancelled', now)
  local kept = note_end(id, 'cancelled', now, reason, seconds(retention))
  acquit(id)
  if reply == '1' or wants_reply(id) then
    push_reply(id, 'cancelled', 'null', reason, retention)
  end
  local again = field_of(id, 'again')
  if again or redis.call('ZSCORE', schedule, id) then
    begin_next(id, again)
  else
    redis.call('HSET', record(id), 'outcome', 'cancelled', 'reason', reason, 'finished', seconds(now))
    redis.call('HDEL', record(id), ATTEMPT_FIELDS)
    if not kept then
      redis.call('PEXPIRE', record(id), milliseconds(retention))
    end
  end
end

-- Completion: the end of a run whose handler has returned.

-- The keys of records and the ids of light jobs that `end_runs` deletes at its end, by one command each.
local unkept, ended_light = {}, {}

-- Return the function `finish` for `end_runs`, for runs that are done; its last arguments are result, retention, reply
-- and label, as in `complete`. `hook` and `task`: see `call_hook`; '' = no hook. `plain`: '1' = JSON has all ids as
-- they are. A run that was to stop ends as cancelled, even if it succeeded.
-- USES note_plain, seconds, abort, acquit, note_end, add_end, push_reply, call_hook, begin_next, milliseconds, row_of,
--      unkept, record_key, ended_light, write_light, suspecting, light_jobs
local function completion(now, hook, task, plain)
  note_plain(plain)
  local moment = seconds(now)
  -- The retentions as PEXPIRE takes them, by their text: most jobs have the same.
  local lifetimes = {}
  return function(id, run, scheduled, result, retention, reply, label)
    if run[5] then
      return abort(id, 'cancelled while it ran', tonumber(retention), reply, now)
    end
    if suspecting then
      acquit(id)
    end
    add_end(id, 'done', label, now, run[1], run[2], run[9], run[10], run[11], run[12], nil, nil, run[13])
    local row = run[8] and row_of(run[8])
    if run[6] or row then
      note_end(id, 'done', now, nil, retention)
    end
    if reply == '1' or run[3] then
      push_reply(id, 'done', result, nil, tonumber(retention))
    end
    if hook ~= '' then
      call_hook(hook, task, id, 'done', result, nil, now)
    end
    local key = record_key(id)
    if run[4] or scheduled then
      return begin_next(id, run[4])
    elseif light_jobs[id] then
      ended_light[#ended_light + 1] = id
      if retention ~= '0' then
        write_light(id, run[10], run[1], run[9], 'outcome', 'done', 'result', result, 'finished', moment)
      else
        unkept[#unkept + 1] = key -- another program may have written one
      end
    elseif retention == '0' and not row then
      unkept[#unkept + 1] = key
    else
      redis.call('HSET', key, 'outcome', 'done', 'result', result, 'finished', moment)
      if run[7] then
        redis.call('HDEL', key, 'reason', ATTEMPT_FIELDS) -- of an earlier run
      end
    end
    if retention ~= '0' and not row then
      lifetimes[retention] = lifetimes[retention] or milliseconds(tonumber(retention))
      redis.call('PEXPIRE', key, lifetimes[retention])
    end
  end
end

-- Hooks: the job of another task that the end of a job puts on the schedule, in the same script.

-- Bytes of a result that a hook's job gets: a payload that exceeds the cap of dispatchers could not run.
local RESULT_PASSED = 65536

-- Schedule the job of the task `hook`, because a job of `task` has ended. `result` is JSON text.
--
-- Its id, `<id>.<outcome>.<when it ended>`, is another one for each end of a job that is revived or whose id is used
-- again. A long id is replaced by its SHA-1. The record is deleted first, so that nothing here can be refused.
-- USES RESULT_PASSED, seconds, attempt_of, field_of, record, write_record, whole_seconds
local function call_hook(hook, task, id, outcome, result, reason, now)
  local moment = seconds(now)
  local suffix = '.' .. outcome .. '.' .. moment
  local name = (#id + #suffix <= 200 and id or redis.sha1hex(id)) .. suffix
  local ended = '{"id":"' .. id .. '","task":' .. cjson.encode(task) .. ',"outcome":"' .. outcome .. '"'
  ended = ended .. ',"attempts":' .. attempt_of(field_of(id, 'attempt'))
  if #result <= RESULT_PASSED then
    ended = ended .. ',"result":' .. result
  end
  if reason then
    ended = ended .. ',"reason":' .. cjson.encode(reason)
  end
  local key = record(name)
  redis.call('DEL', key)
  write_record(key, '{"task":' .. cjson.encode(hook) .. ',"args":[' .. ended .. '}]}', '', '', whole_seconds(now))
  redis.call('ZADD', schedule, moment, name)
end

-- The ledger: a table in a database, each row of which stands for one job (docs/ledger.md).
--
-- The record of such a job has the number of its row in the field `ledger`. When the job ends, the ending script adds a
-- report to the stream `ends`, from which the relays of the ledger write the row's end. Until `settle` says that they
-- have done so, the record stays: by it, a relay that schedules the row once more sees that its job has already run.
--
-- The number of a row is another one each time that the row is used for a job, and a later one is higher. A row is used
-- again only after its job has ended. So the number in a record says which of two jobs of an id is the current one. If
-- a row's job must wait for a run of an earlier use, its number is in the field `next_ledger` meanwhile.
--
-- A job of a row that a client has replaced, or that was revived, has the field `renewed`: `withdraw` leaves it alone.
--
-- ends  stream  id, row, outcome, reason, and retention: seconds that the record is kept from then on, '0' = not at all

local ledger_ends = root .. 'ends'

-- The number of a row, from the field `ledger`; nil when the job is not the ledger's.
local function row_of(text)
  return text and #text <= 18 and text:match('^%d+$') or nil
end

-- Is the first number of a row lower?
local function is_earlier(row, other)
  return #row < #other or (#row == #other and row < other)
end

-- Report the end of a job, or with the outcome 'open' that it waits again.
-- pcall: a stream that is a key of another type must not keep a job from ending; `evsched doctor` finds it.
-- USES ledger_ends
local function report_end(id, row, outcome, reason, retention)
  local fields = { 'id', id, 'row', row, 'outcome', outcome, 'reason', reason or '', 'retention', retention }
  redis.pcall('XADD', ledger_ends, '*', unpack(fields))
end

-- Report the end of a job whose record has just been deleted, and keep a short one in its place until `settle`.
-- USES record, seconds, report_end
local function report_gone(id, row, outcome, reason, now)
  redis.call('HSET', record(id), 'ledger', row, 'outcome', outcome, 'finished', seconds(now))
  report_end(id, row, outcome, reason, '0')
end

-- The recurrence of an occurrence that ends: it may pause, and then its occurrences leave the schedule; its requested
-- runs begin. `_schedule.lua` has the rest of recurrences, and describes their keys.

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

-- Remove those from the schedule: the recurrence was changed, paused or removed. An occurrence that was dispatched
-- before is a job like any other, which waits for its retry or cannot begin yet: it stays.
-- USES ahead_of, moment_of, field_of, record, recurrence
local function withdraw(name)
  for _, id in ipairs(ahead_of(name)) do
    if not (moment_of(field_of(id, 'due')) or field_of(id, 'reason')) then
      redis.call('ZREM', schedule, id)
      redis.call('DEL', record(id))
    end
  end
  redis.call('HDEL', recurrence(name), 'ahead', 'waiting')
end

-- Pauses of recurrences, by an operator or after failures.
--
-- pauses        zset  name -> when the pause ends, Unix seconds; only of pauses that end by themselves
-- newly_paused  set   names of recurrences that were paused because of failures, which no dispatcher has reported yet
--
-- The record of a paused recurrence has `paused`, since when; `paused_until`, its end; and `paused_why`. Its score is
-- +inf. So a dispatcher that does not know of ends leaves it paused.

local pauses = root .. 'pauses'
local newly_paused = root .. 'newly_paused'

-- Pause a recurrence; `ends` and `why` may be ''. Dispatchers receive an event, and look when the pause ends.
-- USES recurrence, withdraw, pauses, seconds
local function begin_pause(name, ends, why, now)
  local key = recurrence(name)
  withdraw(name)
  redis.call('HDEL', key, 'paused_until', 'paused_why')
  redis.call('HSET', key, 'paused', seconds(now))
  if why ~= '' then
    redis.call('HSET', key, 'paused_why', why)
  end
  redis.pcall('ZREM', pauses, name) -- pcall: the key may be of another type
  if ends ~= '' then
    redis.call('HSET', key, 'paused_until', ends)
    redis.call('ZADD', pauses, ends, name)
  end
  redis.call('ZREM', recurrences, name) -- otherwise a second pause would change nothing, and cause no event
  redis.call('ZADD', recurrences, '+inf', name)
end

-- Pause a recurrence that has failed as often in a row as its `pause_after` allows. Called at the end of a run, where
-- nothing may be refused: a key of another type changes nothing.
-- USES recurrence, made_of, begin_pause, newly_paused
local function pause_if_failing(name, now)
  local found = redis.call('HMGET', recurrence(name), 'pause_after', 'failing', 'paused', 'retired')
  local most, failing = made_of(found[1]), made_of(found[2])
  if most == 0 or failing < most or found[3] or found[4] then
    return
  end
  if type(redis.pcall('ZSCORE', recurrences, name)) == 'string' then
    begin_pause(name, '', failing .. (failing == 1 and ' failure' or ' failures in a row'), now)
    redis.pcall('SADD', newly_paused, name)
  end
end

local function requests_of(name)
  return root .. 'requests:' .. name
end

-- Make jobs of the next requested runs, at most `most`, and one if overlap is not allowed. The caller has checked that
-- no occurrence of such a recurrence is on its way or runs. While the recurrence is paused, only triggered runs begin;
-- none when it is retired.
-- USES requests_of, recurrence, occurrence_of, moment_of, record, write_record, seconds, whole_seconds
local function begin_requests(name, most, now)
  local requests, key = requests_of(name), recurrence(name)
  if redis.call('EXISTS', requests) == 0 then
    return
  end
  local found = redis.pcall('HMGET', key, 'payload', 'priority', 'group', 'overlap', 'requested', 'paused', 'retired')
  -- pcall: a run ends here, so nothing may be refused because a key is of another type.
  if found.err or found[7] or type(redis.pcall('ZSCORE', recurrences, name)) ~= 'string' then
    return
  end
  local turn = occurrence_of(name, found[5])
  if found[4] ~= 'allow' then
    most = 1
    if turn and redis.call('ZSCORE', schedule, turn) then
      return
    end
  end
  local last = found[6] and 0 or '+inf'
  while most > 0 do
    -- An error, when the key is of another type, has no elements either.
    local planned = redis.pcall('ZRANGE', requests, '-inf', last, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not planned then
      return
    end
    redis.call('ZREM', requests, planned)
    local id = name .. '@' .. planned
    local new = record(id)
    if moment_of(planned) and redis.call('EXISTS', new) == 0 then
      redis.call('ZADD', schedule, seconds(now), id)
      -- A group of their own, so that other occurrences do not wait behind a long backfill.
      write_record(new, found[1] or '', found[2] or '', found[3] or '@requested', whole_seconds(now))
      redis.call('HSET', new, 'recurrence', name, 'planned', planned)
      redis.call('HSET', key, 'requested', id)
      most = most - 1
    end
  end
end
