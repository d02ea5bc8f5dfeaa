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
--        LATE       it has ended. With `outer`, this is no failure: its jobs may be revived
-- TWICE  the second call changes nothing
-- USES   clock, expect, refuse, fail, seconds, read_batch, no_batch, batch_of, write_batch, stamp_batch,
--        end_batch_pause, add_chore, note_act
--
-- Each change has a stamp, which is higher than all before. Then `batch_hold` applies it in each queue of the jobs, and
-- another call of this script in each batch among them, and the caller deletes the chore `hold`. A second pause keeps
-- the first moment. Its end and its sentence take the place of the first. The end of a batch ends its
-- own pause.

local now, id, held, ends, why, after, seen, outer, act = unpack(ARGV, 1, 9)
now = clock(now)

if held ~= '1' and held ~= '' then
  refuse('held', "'1' or ''")
end
local parent, outer_stamp = outer:match('^(%S+/%S+/%d+) (%d+)$')
if outer ~= '' and (not parent or #outer_stamp > 15) then
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

-- `own`: it is paused itself; `above`: the batch that it is in is. The end and the sentence are those of its own pause,
-- or else of the other. To resume it by hand ends both, the end of its time only its own.
local names = { 'paused_until', 'paused_why', 'outer_stamp', 'paused_itself', 'paused_above' }
local known = redis.call('HMGET', key, unpack(names))
local own, above, late = known[4] == '1', known[5] == '1', is_over or (seen ~= '' and seen ~= batch.stamp)
if parent then
  late = tonumber(outer_stamp) <= (tonumber(known[3] or nil) or 0) -- this was done before, or comes late
  above = held == '1'
else
  own, above = held == '1', above and (held == '1' or seen ~= '')
end
local paused = own or above
local says = (held == '1' and (not parent or not own)) or (seen ~= '' and paused)
local same = paused == (batch.paused ~= false) and (not says or ((known[1] or '') == ends and (known[2] or '') == why))
if not late and (parent or own ~= (known[4] == '1') or above ~= (known[5] == '1')) then
  redis.call('HSET', key, 'paused_itself', own and '1' or '', 'paused_above', above and '1' or '')
  redis.call('HSET', key, 'outer_stamp', outer_stamp or known[3] or '0')
end
local may_run = not is_over or batch.state == 'failed'
if not late and not same and (may_run or batch.paused) then
  if not paused then
    end_batch_pause(batch, now, tonumber(after))
  else
    batch.paused = batch.paused or seconds(now)
    for field, value in pairs(says and { paused_until = ends, paused_why = why } or {}) do
      if value ~= '' then
        redis.call('HSET', key, field, value)
      else
        redis.call('HDEL', key, field)
      end
    end
    stamp_batch(batch, now, tonumber(after))
    if says and ends ~= '' then
      add_chore(ends, 'resume', id, batch.stamp)
    end
  end
  write_batch(batch)
  note_act(act)
end
return { seconds(now), batch.stamp or '0', batch.paused and '1' or '', since ~= '' and since or batch.paused or '' }
