#!lua flags=allow-oom
-- batch_close: moves nothing. Closes a batch, or cancels it: only its own jobs may add more. The first nodes of a graph
-- are released.
--
-- KEYS   root       prefix of the keys of the home of the batch
-- ARGV   now        seconds, '' = Redis's clock
--        id         of the batch
--        done       token of the reservation to confirm, '' = none
--        how        '' = it is closed; 'cancelled', 'expired' = its jobs are cancelled too
--        act        of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  its state: 'running', 'done', 'failed' or 'cancelled'
-- FAILS  MISSING    there is no such batch
-- TWICE  the second call changes nothing
-- USES   clock, seconds, expect, refuse, read_batch, no_batch, confirm, decide, add_chore, note_act, cancel_waiting
--
-- A keeper then cancels the jobs that have not ended, some at a time. The batch has ended when they have.

local now, id, done, how, act = unpack(ARGV, 1, 5)
now = clock(now)

if how ~= '' and how ~= 'cancelled' and how ~= 'expired' then
  refuse('how', 'a way to close a batch')
end
expect('ZCARD', root .. 'chores')
local batch = read_batch(id)
if not batch then
  return no_batch(id)
end

if done ~= '' then
  confirm(batch, done, now)
end
local is_over = batch.state == 'done' or batch.state == 'cancelled' or (batch.state == 'failed' and how ~= 'cancelled')
if not is_over then
  batch.closed = batch.closed or seconds(now)
  if batch.state == 'open' then
    batch.changes = batch.nodes > 0 and { 'start 0 1' } or {}
    batch.state = 'running'
  end
  if how ~= '' and batch.stop ~= 'cancelled' and batch.stop ~= how then
    batch.stop = how
    if batch.nodes > 0 then
      cancel_waiting(batch)
    end
    if batch.total > 0 then
      add_chore(seconds(now), 'cancel', id, 0, batch.total - 1)
    end
    note_act(act)
  end
end
decide(batch, now)
return batch.state
