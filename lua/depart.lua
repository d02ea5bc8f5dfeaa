#!lua
-- depart: schedule -> moving. A batch of jobs leaves for another shard of the queue, or the other way round.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        to        the queue that they go to
--        token     of the batch: random
--        above     count: the batch gets a higher number than this; '0' = any
--        calm      number: seconds: jobs that are due sooner stay
-- ROWS   member    of the schedule: an id or an inline job, at most 250
-- REPLY  the batch that is on its way: number, '' = there is none; token; where it goes; its jobs as member, content;
--        and for each row that stays here: member; why: 'soon', 'recurrence', 'ledger', 'other', 'gone' = it is not
--        on the schedule
-- FAILS  none
-- TWICE  the second call returns the same batch
-- USES   clock, rows, seconds, expect, expect_gate, record, fields_of, moving, moving_due, moving_batch,
--        lies_elsewhere, MEMBER_MOST, is_inline, decode, is_id, row_of, recurrence_of, field_of, long_field, decoded,
--        deferred, suspicion_of, unique
--
-- While a batch is on its way, no other one leaves: the reply has that batch, and its caller finishes it (`arrive`
-- there, then `vacate` here), even if another program began it. Without rows, the call only reads it. The records stay
-- here until then. Rows that are neither in the batch nor in the list of jobs that stay had no room: a batch has a
-- limit of bytes.
--
-- Jobs that wait for something else than their time stay: a recurrence and the ledger know their jobs by the queue, and
-- an id that also runs, waits or is dead has one record for both. Redis refuses this script when its memory is full. 15
-- to 20 us a job; O(workers) for one that has run before.

local now, to, token, above, calm = unpack(ARGV, 1, 5)
now, calm = clock(now), tonumber(calm)

-- Bytes of the payloads and of the results of steps of a batch, about, and the fields of a record that moves.
local BATCH_MOST, FIELDS_MOST = 262144, 100

expect('ZCARD', dead, leases)
expect('HLEN', moving)
expect_gate()

-- Why a job stays that has a record; nil when it can move.
local function why_record_stays(id)
  local key = record(id)
  local job = fields_of(key, 'worker', 'due', 'finished', 'recurrence', 'ledger')
  if job.err or redis.call('HSTRLEN', key, 'payload') == 0 then
    return 'other'
  elseif row_of(job[5]) then
    return 'ledger'
  elseif recurrence_of(id, job[4]) then
    return 'recurrence'
  elseif job[3] or redis.call('PTTL', key) ~= -1 or lies_elsewhere(id, job[1], job[2]) then
    return 'other'
  elseif redis.call('HLEN', key) > FIELDS_MOST or redis.call('MEMORY', 'USAGE', key, 'SAMPLES', '0') > MEMBER_MOST then
    return 'other'
  end
end

local function why_stays(member)
  local due = redis.call('ZSCORE', schedule, member)
  if not due then
    return 'gone'
  elseif tonumber(due) <= now + calm then
    return 'soon'
  elseif is_inline(member) and decode(member, MEMBER_MOST) then
    return nil
  elseif not is_id(member) then -- an inline job that cannot run cannot move either
    return 'other'
  end
  return why_record_stays(member)
end

-- Bytes of the fields of a record that may be long.
local function size_of_record(id)
  local key = record(id)
  return redis.call('HSTRLEN', key, 'payload')
    + redis.call('HSTRLEN', key, 'steps')
    + redis.call('HSTRLEN', key, 'signals')
end

-- The window that a job waits for, if it is noted as deferred for it; else ''.
local function window_of(id, due)
  if not field_of(id, 'reason') then
    return ''
  end
  local payload = long_field(id, 'payload')
  local window = payload:find('"window"', 1, true) and decoded(payload).window
  local short = type(window) == 'string' and #window <= 200
  return short and redis.pcall('ZSCORE', deferred(window), id) == due and window or ''
end

-- The data of a job for `arrive`, as bytes: its due; its record as field, value, ...; until when its id is taken,
-- and milliseconds until then; its deaths, doubtful runs and counted doubtful runs; its window. An inline job has only
-- a due.
local function pack(member, due)
  if is_inline(member) then
    return cmsgpack.pack({ due })
  end
  local found = redis.pcall('HGETALL', record(member))
  local taken = redis.pcall('GET', unique(member)) -- pcall: a key of another type takes nothing
  taken = type(taken) == 'string' and taken or ''
  local left, fields = redis.call('PTTL', unique(member)), found.err and {} or found
  return cmsgpack.pack({ due, fields, taken, left, { suspicion_of(member) }, window_of(member, due) })
end

local number, open_token, _, open_to = moving_batch()
local leaving, stays, bytes = {}, {}, 0
for member in rows(6, 1) do
  if not moving_due(member) then
    local why = why_stays(member)
    if why then
      stays[#stays + 1] = member
      stays[#stays + 1] = why
    elseif not number and bytes < BATCH_MOST then
      bytes = bytes + #member + (is_inline(member) and 0 or size_of_record(member))
      leaving[#leaving + 1] = member
    end
  end
end

if #leaving > 0 then
  number, open_token, open_to = string.format('%.0f', math.max(math.floor(now * 1e6), above + 1)), token, to
  local fields = { '*', number .. ' ' .. token .. ' ' .. seconds(now) .. ' ' .. to }
  for _, member in ipairs(leaving) do
    fields[#fields + 1] = member
    fields[#fields + 1] = redis.call('ZSCORE', schedule, member)
  end
  redis.call('HSET', moving, unpack(fields))
  redis.call('ZREM', schedule, unpack(leaving))
end
local jobs = {}
if number then
  local found = redis.call('HGETALL', moving)
  for i = 1, #found, 2 do
    if found[i] ~= '*' then
      jobs[#jobs + 1] = found[i]
      jobs[#jobs + 1] = pack(found[i], found[i + 1])
    end
  end
end
return { number or '', open_token or '', open_to or '', jobs, stays }
