#!lua
-- replace: anywhere or nowhere -> schedule, with another payload, priority, group and time.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        within    number or '': as in `enqueue`. If an id is taken, its job is replaced only if it waits
--        by        as in `enqueue`
--        key       as in `enqueue`
--        asked     as in `enqueue`; '' = the key is the client's own, and is known for a minute
-- ROWS   id        1 to 200 of A-Z a-z 0-9 . _ : @ -
--        payload   JSON
--        priority  0 to 9, '' = the default
--        group     '' = none
--        due       score or '': Unix seconds, '' = `delay` from now
--        delay     score: seconds
-- REPLY  as of `enqueue`
-- FAILS  MOVING    a job of one of the ids is on its way to another shard; then no row is written
-- TWICE  with a `key`, the second call writes nothing. It returns the reply of the first or, if the key is the client's
--        own, the dues that the jobs have now. Without a key, it writes all again
-- USES   clock, rows, seconds, expect, expect_gate, admit, record, field_of, place_of, known_due, still_taken, take,
--        supplant, row_of, first_reply, keep_dues, fail, moving_due, IS_MOVING, claim_of
--
-- Clients that wait for the job's end get that of the new one. A job that runs goes on running, with its retries; the
-- new one runs afterwards, and its attempts are counted from 0. While the id of a unique job is taken, a job that runs
-- or has ended stays as it is, so that there is one job in that time.
--
-- Redis refuses this script when its memory is full.

local now, within, by, key, asked = unpack(ARGV, 1, 5)
now = clock(now)
-- Seconds for which a call of a client is known: longer than it sends it again.
local CALL_KEPT = 60
local own, dues = key ~= '' and asked == '', {}
local first = not own and first_reply(key)
if first then
  return first
elseif own and claim_of('/' .. key) then
  for id in rows(6, 6) do
    dues[#dues + 1] = known_due(id, now)
  end
  return dues
end

local function waits(id)
  local place = place_of(id, field_of(id, 'worker'), field_of(id, 'finished'))
  return place == 'schedule' or place == 'backlog' or place == 'ready'
end

local places, taken, kept = {}, {}, {}
for id, _, _, _, due, delay in rows(6, 6) do
  if moving_due(id) then
    return fail('MOVING', id .. IS_MOVING)
  end
  taken[id] = within ~= '' and still_taken(id, now)
  if taken[id] and not waits(id) then
    kept[id] = true
    due = known_due(id, now)
  else
    if due == '' then
      due = seconds(now + tonumber(delay))
    end
    places[#places + 1] = due
    places[#places + 1] = id
  end
  dues[#dues + 1] = due
end

expect('ZCARD', dead)
expect_gate()
-- First, since ZADD refuses an invalid due.
if #places > 0 then
  redis.call('ZADD', schedule, unpack(places))
end

for id, payload, priority, group in rows(6, 6) do
  if not kept[id] then
    local row = not field_of(id, 'finished') and row_of(field_of(id, 'ledger')) or ''
    local batch = not field_of(id, 'finished') and field_of(id, 'batch') or ''
    local next_row = row_of(field_of(id, 'next_ledger')) or ''
    supplant(
      id,
      payload,
      priority,
      group,
      now,
      { by = by, ledger = row, batch = batch, life = batch ~= '' and field_of(id, 'life') or nil },
      next_row
    )
    if row ~= '' then
      redis.call('HSET', record(id), 'renewed', '1')
    end
    if within ~= '' and not taken[id] then
      take(id, tonumber(within), now)
    end
  end
end
admit(0, now)
if own then
  take('/' .. key, CALL_KEPT, now)
end
return (own or key == '') and dues or keep_dues(key, asked, dues, 6, 6, now)
