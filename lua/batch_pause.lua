#!lua flags=allow-oom
-- batch_pause: moves nothing. Pauses a batch, or resumes it.
--
-- KEYS   root       prefix of the keys of the home of the batch
-- ARGV   now        seconds, '' = Redis's clock
--        id         of the batch
--        held       '1' = it is paused, '' = it is resumed
--        ends       score or '': seconds, when it is resumed by itself; '' = it is not
--        why        a sentence for operators, or ''
--        after      number: seconds after which a keeper applies this in the queues, unless the caller does it before
--        seen       the stamp without which nothing is changed, '' = whatever it is
--        outer      of the batch that it is in, which is paused or resumed, and this one with it: the field `parent`, a
--                   space, and the stamp. '' = it alone is
--        act        of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  now; its stamp, '0' = it was never paused; '1' = it is paused, '' = it is not; since when it is paused, or was
--        until now, '' = it was not
-- FAILS  MISSING    there is no such batch, or it is not in the outer one
--        LATE       it has ended. With `outer`, nothing is changed, and this is no failure
-- TWICE  the second call changes nothing
-- USES   clock, expect, refuse, fail, seconds, read_batch, no_batch, batch_of, write_batch, stamp_batch,
--        end_batch_pause, add_chore, note_act
--
-- Each change has a stamp, which is higher than all before. Then `batch_hold` applies it in each queue of the jobs, and
-- another call of this script in each batch among them, and the caller deletes the chore `hold`. A second pause keeps
-- the first moment. Its end and its sentence take the place of the first. The end of a batch ends its pause.

local now, id, held, ends, why, after, seen, outer, act = unpack(ARGV, 1, 9)
now = clock(now)

if held ~= '1' and held ~= '' then
  refuse('held', "'1' or ''")
end
local parent, above = outer:match('^(%S+/%S+/%d+) (%d+)$')
if outer ~= '' and (not parent or #above > 15) then
  refuse('outer', 'a batch and its stamp')
end
expect('ZCARD', root .. 'chores')
local batch = read_batch(id)
if not batch or (parent and batch.parent ~= parent) then
  return no_batch(id)
end
local key, since = batch_of(id), batch.paused or ''
local is_over = batch.state ~= 'open' and batch.state ~= 'running'
if is_over and held == '1' and not parent then
  return fail('LATE', 'batch ' .. id .. ' has ended: there is nothing to pause')
end

local known = redis.call('HMGET', key, 'paused_until', 'paused_why', 'outer_stamp')
local same = held == '' or (known[1] or '') == ends and (known[2] or '') == why
same = same and (batch.paused ~= false) == (held == '1')
if parent and tonumber(above) > (tonumber(known[3] or nil) or 0) then
  redis.call('HSET', key, 'outer_stamp', above)
elseif parent then
  same = true -- this was done before, or comes late
end
if not same and not is_over and (seen == '' or seen == batch.stamp) then
  if held == '1' then
    batch.paused = batch.paused or seconds(now)
    for field, value in pairs({ paused_until = ends, paused_why = why }) do
      if value ~= '' then
        redis.call('HSET', key, field, value)
      else
        redis.call('HDEL', key, field)
      end
    end
    stamp_batch(batch, now, tonumber(after))
    if ends ~= '' then
      add_chore(ends, 'resume', id, batch.stamp)
    end
  else
    end_batch_pause(batch, now, tonumber(after))
  end
  write_batch(batch)
  note_act(act)
end
return { seconds(now), batch.stamp or '0', batch.paused and '1' or '', since ~= '' and since or batch.paused or '' }
