#!lua flags=allow-oom
-- batch_add: moves nothing. Reserves ordinals of a batch for jobs that are about to be enqueued, and confirms an
-- earlier reservation.
--
-- KEYS   root       prefix of the keys of the home of the batch
-- ARGV   now        seconds, '' = Redis's clock
--        id         of the batch
--        token      of this reservation: random
--        count      count: how many ordinals, '0' = it only confirms
--        queue      to which the jobs go
--        settled    number: seconds from now after which jobs that were not enqueued by then are missing
--        member     `<ordinal>/<turn>` of the member whose run adds them, '' = another program does
--        done       token of the reservation to confirm, '' = none
-- ROWS   id         of the job of each of the first ordinals; the others have `<batch>.<ordinal>`. `/<batch>`: it is a
--                   batch
-- REPLY  now; the first ordinal, '' = none is reserved; why not, '' = none was asked for; the stamp of its pause, '' =
--        it is not paused
-- FAILS  MISSING    there is no such batch
-- TWICE  the second call returns the same ordinals, until they are confirmed
-- USES   clock, rows, seconds, expect, refuse, read_batch, no_batch, batch_of, apply_ends, confirm, decide, add_chore,
--        batch_part, add_part, note_inner
--
-- A batch with a reservation that is not confirmed does not end. If it is paused, `batch_hold` must come before the
-- jobs, in the queue to which they go.

local now, id, token, count, queue, settled, member, done = unpack(ARGV, 1, 8)
now, count = clock(now), tonumber(count)

-- How many jobs a batch may have: each takes a byte.
local MEMBERS_MOST = 10000000
-- How many are reserved at once, at most.
local RESERVED_MOST = 10000

if count > RESERVED_MOST or not token:find('^%w+$') or not queue:find('^[%w._:@-]*$') or not done:find('^%w*$') then
  refuse('count', 'a valid reservation')
end
local ordinal, turn = member:match('^(%d+)/?(%d*)$')
if member ~= '' and (not ordinal or #ordinal > 9 or #turn > 2) then
  refuse('member', 'a valid member')
end
expect('ZCARD', root .. 'chores')
local batch = read_batch(id)
if not batch then
  return no_batch(id)
end
expect('LLEN', batch_part('parts', id))
expect('HLEN', batch_part('ids', id))

local first = redis.call('HGET', batch_of(id), 'adding:' .. token)
first = first and first:match('^%d+')
if turn and turn ~= '' then
  apply_ends(batch, tonumber(ordinal), string.char(math.min(tonumber(turn), 31) * 8)) -- it was revived, and runs
end
if done ~= '' then
  confirm(batch, done, now)
end
decide(batch, now)
local paused = batch.paused and batch.stamp or ''
if count == 0 then
  return { seconds(now), '', '', paused }
elseif first then
  return { seconds(now), first, '', paused }
elseif batch.stop or (batch.state ~= 'open' and batch.state ~= 'running') then
  local why = batch.stop == 'cancelled' and 'was cancelled' or batch.stop and 'has expired' or 'has ended'
  return { seconds(now), '', why .. ': no more jobs can be added', '' }
elseif batch.nodes > 0 then
  return { seconds(now), '', 'is a graph, which has the jobs with which it was enqueued: open a batch for more', '' }
elseif batch.total + count > MEMBERS_MOST then
  return { seconds(now), '', 'cannot have more than ' .. MEMBERS_MOST .. ' jobs: open another one', '' }
end

first = batch.total
local last = first + count - 1
local ids, at = {}, first
for job in rows(9, 1) do
  if at <= last then
    ids[#ids + 1], ids[#ids + 2] = at, job
    note_inner(id, at, job, queue)
  end
  at = at + 1
  if #ids == 1000 then
    redis.call('HSET', batch_part('ids', id), unpack(ids))
    ids = {}
  end
end
if #ids > 0 then
  redis.call('HSET', batch_part('ids', id), unpack(ids))
end
add_part(id, first, count, queue)
batch.total, batch.adding = batch.total + count, batch.adding + 1
redis.call('HSET', batch_of(id), 'adding:' .. token, first .. ' ' .. last)
add_chore(seconds(now + tonumber(settled)), 'settle', id, first, last, token)
decide(batch, now)
return { seconds(now), string.format('%d', first), '', paused }
