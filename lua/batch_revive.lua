#!lua flags=allow-oom
-- batch_revive: moves nothing. Starts a node of a graph again that failed without a job: it could not be enqueued.
--
-- KEYS   root       prefix of the keys of the home of the graph
-- ARGV   now        seconds, '' = Redis's clock
--        id         of the graph
--        node       count: its ordinal
--        act        of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  '1' = it is started again; '' = it has been before, and has not ended since
-- FAILS  MISSING    there is no such graph or node; it has not failed, or its job has; or it failed 31 times before
--        LATE       the graph is done, was cancelled or has expired
-- TWICE  the second call changes nothing
-- USES   clock, expect, fail, read_batch, no_batch, batch_part, apply_ends, decide, note_act
--
-- A failed graph is open again, as when a job of it is revived. The end of the node has the next turn, so a late report
-- of the earlier failure changes nothing. A node with a job for each item is not started again: its batch reports the
-- turns of its own.

local now, id, node, act = unpack(ARGV, 1, 4)
now, node = clock(now), tonumber(node)

expect('ZCARD', root .. 'chores')
local batch = read_batch(id)
if not batch then
  return no_batch(id)
elseif node >= batch.nodes then
  return fail('MISSING', string.format('%s has no node %d', id, node))
end
expect('HLEN', batch_part('ids', id))
local name = string.format('%d', node)
local job = redis.call('HGET', batch_part('ids', id), name) or id .. '.' .. name
local why = redis.call('HGET', batch_part('nodes', id), '?' .. name)
local byte = redis.call('GETRANGE', batch_part('ends', id), name, name):byte() or 0
local code, turn = byte % 8, math.floor(byte / 8)
if code == 0 and turn > 0 and not why then
  return ''
elseif code ~= 2 or not why then
  return fail('MISSING', job .. ' is not a node that failed without a job')
elseif turn >= 31 then
  return fail('MISSING', job .. ' failed 32 times without a job: enqueue the graph again')
elseif job:find('/', 1, true) then
  return fail('MISSING', job:sub(2) .. ' has a job for each item: enqueue the graph again')
elseif batch.stop or (batch.state ~= 'running' and batch.state ~= 'failed') then
  return fail('LATE', 'graph ' .. id .. ' is done, was cancelled or has expired: ' .. job .. ' cannot be started again')
end
redis.call('HDEL', batch_part('nodes', id), '?' .. name)
apply_ends(batch, node, string.char((turn + 1) * 8))
batch.released = { node }
note_act(act, 1, { job })
decide(batch, now)
return '1'
