#!lua
-- batch_plan: moves nothing. Writes nodes of a graph: the first jobs of a batch, which run in an order.
--
-- KEYS   root       prefix of the keys of the home of the batch
-- ARGV   id         of the batch
--        first      count: the ordinal of the first row; then the next ones
-- ROWS   node       its job: JSON, see evsched/batches/node.py
--        job        the id of its job, '' = `<batch>.<ordinal>`. `/<batch>`: it is a batch
--        queue      to which its job goes
--        after      the ordinals of the nodes before it, all lower than its own, with spaces between them
--        despite    '1' = it also runs if they fail
-- REPLY  how many nodes the batch has
-- FAILS  MISSING    there is no such batch
--        LATE       the batch is closed, or was cancelled; then no row is written
--        INVALID    the first row is not the next node, or a row is not a valid one; then no row is written
-- TWICE  the second call writes nothing, even if the batch is closed by then
-- USES   rows, expect, fail, read_batch, no_batch, write_batch, batch_part, add_part, note_inner
--
-- A node comes later than those before it, so there is no circle. They run once the batch is closed. About 10 us a row.

local id, first = unpack(ARGV, 1, 2)
first = tonumber(first)

-- How many nodes a graph may have.
local NODES_MOST = 10000

expect('ZCARD', root .. 'chores')
local batch = read_batch(id)
if not batch then
  return no_batch(id)
end
expect('LLEN', batch_part('parts', id))
expect('HLEN', batch_part('ids', id), batch_part('nodes', id))
if first > batch.nodes then
  return fail('INVALID', id .. ' has ' .. batch.nodes .. ' nodes: the first one of this call must be the next')
end
local at = first
for _, _, queue, after in rows(3, 5) do
  if not queue:find('^[%w._:@-]+$') or after:find('[^%d ]') then
    return fail('INVALID', 'a node of ' .. id .. ' has no valid queue, or stands after what is not an ordinal')
  end
  for before in after:gmatch('%d+') do
    if #before > 5 or tonumber(before) >= at then
      return fail('INVALID', 'a node of ' .. id .. ' stands after one that is not before it')
    end
  end
  at = at + 1
end
if at > NODES_MOST then
  return fail('INVALID', id .. ' cannot have more than ' .. NODES_MOST .. ' nodes')
elseif at > batch.nodes and (batch.state ~= 'open' or batch.total > batch.nodes) then
  return fail('LATE', id .. ' is closed, or has jobs already: its graph can have no more nodes')
end

local nodes, later, bytes, parts, part = batch_part('nodes', id), {}, {}, {}, {}
at = first
for node, job, queue, after, despite in rows(3, 5) do
  if at >= batch.nodes then
    local waits = 0
    for before in (after == '' and 'start' or after):gmatch('%w+') do
      waits, later[before] = waits + 1, later[before] or {}
      table.insert(later[before], at .. (despite == '1' and '!' or ''))
    end
    redis.call('HSET', nodes, at, node, '<' .. at, after, '-' .. at, waits .. ' 0')
    if job ~= '' then
      redis.call('HSET', batch_part('ids', id), at, job)
      note_inner(id, at, job, queue)
    end
    if queue ~= part.queue then
      part = { first = at, count = 0, queue = queue }
      parts[#parts + 1] = part
    end
    part.count = part.count + 1
    bytes[#bytes + 1] = '\7'
  end
  at = at + 1
end
if #bytes > 0 then
  for _, one in ipairs(parts) do
    add_part(id, one.first, one.count, one.queue)
  end
  for before, list in pairs(later) do
    local known = redis.call('HGET', nodes, '>' .. before)
    redis.call('HSET', nodes, '>' .. before, (known and known .. ' ' or '') .. table.concat(list, ' '))
  end
  redis.call('SETRANGE', batch_part('ends', id), batch.nodes, table.concat(bytes))
  batch.nodes, batch.total = at, at
  write_batch(batch)
end
return batch.nodes
