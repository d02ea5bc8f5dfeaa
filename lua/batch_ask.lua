#!lua flags=allow-oom
-- batch_ask: moves nothing. Requests that the end of a node of a graph is pushed to a list, for clients that wait.
--
-- KEYS   root       prefix of the keys of the home of the graph
-- ARGV   id         of the graph
--        node       count: its ordinal
-- REPLY  '1' = it has ended; '' = it has not
-- FAILS  MISSING    there is no such graph, or no such node
-- TWICE  the second call changes nothing
-- USES   fail, read_batch, no_batch, batch_of, batch_part, end_class
--
-- The list is `batch_over:<id>/<node>`. If too many nodes are asked for, none is pushed for the others: clients ask
-- again after some seconds all the same.

local id, node = unpack(ARGV, 1, 2)

-- How many nodes are asked for at the same time, at most: each costs 0.3 us in every call that counts ends.
local ASKED_MOST = 100

local batch = read_batch(id)
if not batch then
  return no_batch(id)
elseif tonumber(node) >= batch.nodes then
  return fail('MISSING', id .. ' has no node ' .. node)
end
node = string.format('%d', node)
local code = redis.call('GETRANGE', batch_part('ends', id), node, node):byte() or 0
if end_class(code % 8) ~= 0 then
  return '1'
end
redis.call('DEL', batch_part('over', id .. '/' .. node)) -- it ended before it was revived
local asked, many = batch.asked or '', 0
for known in asked:gmatch('%d+') do
  if known == node then
    return ''
  end
  many = many + 1
end
if many < ASKED_MOST then
  redis.call('HSET', batch_of(id), 'asked', asked == '' and node or asked .. ' ' .. node)
end
return ''
