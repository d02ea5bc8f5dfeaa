-- Graphs: batches whose jobs have an order. Their first ordinals are nodes, which `batch_plan` writes before the batch
-- is closed.
--
-- batch_nodes:<id>   hash  of each node, by its ordinal n:
--                          n   its job: JSON, see evsched/batches/node.py
--                          <n  the ordinals of the nodes before it, with spaces between them
--                          >n  those of the nodes after it, with '!' if they run despite failures; `>start`: those
--                              that have none before them
--                          -n  `<waits> <fails>`: for how many nodes before it it waits, and how many of them stop it
--                          ?n  why its job could not be enqueued
-- batch_ripple:<id>  list  `<n> <was> <is> [<from>]`: a node has changed, and those after it do not know yet; but the
--                          nodes in the first `from` letters of `>n` do
--
-- batch_over:<id>/<n>  list  how the node has ended, for clients that wait: see batch_ask.lua
--
-- A node waits until each node before it is done; or has ended, if it runs despite failures. Otherwise it is stopped as
-- long as one of them has ended without being done. Then it counts as an end itself. When it waits for none, it is
-- released, once for all: a chore has a keeper enqueue its job.
--
-- start <batch> <ordinals>    enqueue the jobs of released nodes; ordinals with commas between them
-- restart <batch> <ordinals>  the same once more, if one went to another server of a cluster
-- ripple <batch> <number>     go on: there was too much to do for one call
-- shed <batch> <first>        the batch is done: the records of its jobs get their own retention

-- Changes and edges that a call looks at, and nodes that one chore starts, at most.
local EDGES_MOST = 300
local STARTS_MOST = 100

-- The class of a code, for the nodes after it: 0 = not ended, 1 = done, 2 = ended otherwise.
local function end_class(code)
  if code == 0 or code == 7 then
    return 0
  end
  return code == 1 and 1 or 2
end

-- Note that a node has another code.
-- USES end_class
local function note_change(batch, node, was, is)
  was, is = end_class(was), end_class(is)
  if was ~= is then
    batch.changes[#batch.changes + 1] = node .. ' ' .. was .. ' ' .. is
  end
end

-- Pass changes on to the nodes after them, at most `left` of both. Return how many are left, and how the counts of
-- those nodes change: ordinal -> { waits, fails }.
-- USES batch_part
local function pass_on(batch, left)
  local key, nodes, later = batch_part('ripple', batch.id), batch_part('nodes', batch.id), {}
  while left > 0 do
    local change = redis.call('LPOP', key)
    if not change then
      break
    end
    left = left - 1
    local node, was, is, from = change:match('^(%w+) (%d) (%d) ?(%d*)$')
    local after, place = redis.call('HGET', nodes, '>' .. (node or '')) or '', (tonumber(from) or 0) + 1
    while place <= #after and left > 0 do
      local _, last, at, despite = after:find('^(%d+)(!?) ?', place)
      if not last then
        break
      end
      local counts = later[tonumber(at)] or { 0, 0 }
      later[tonumber(at)] = counts
      if despite == '!' then
        counts[1] = counts[1] + (is == '0' and 1 or 0) - (was == '0' and 1 or 0)
      else
        counts[1] = counts[1] + (was == '1' and 1 or 0) - (is == '1' and 1 or 0)
        counts[2] = counts[2] + (is == '2' and 1 or 0) - (was == '2' and 1 or 0)
      end
      place, left = last + 1, left - 1
    end
    if place <= #after and left == 0 then
      redis.call('LPUSH', key, table.concat({ node, was, is, place - 1 }, ' '))
    end
  end
  return left, later
end

-- Change the counts of nodes, and release or stop them, or let them wait again.
-- USES batch_part, note_change
local function change_nodes(batch, later)
  local ends, nodes = batch_part('ends', batch.id), batch_part('nodes', batch.id)
  local order, fields = {}, {}
  for node in pairs(later) do
    order[#order + 1] = node < batch.nodes and node or nil
  end
  if #order == 0 then
    return
  end
  table.sort(order)
  for i, node in ipairs(order) do
    fields[i] = '-' .. node
  end
  local counts, known =
    redis.call('HMGET', nodes, unpack(fields)), redis.call('GETRANGE', ends, order[1], order[#order])
  local written = {}
  for i, node in ipairs(order) do
    local waits, fails = (counts[i] or ''):match('^(%-?%d+) (%-?%d+)$')
    if waits then
      waits, fails = waits + later[node][1], fails + later[node][2]
      written[#written + 1] = fields[i]
      written[#written + 1] = waits .. ' ' .. fails
      local code = known:byte(node - order[1] + 1)
      local is = fails > 0 and 6 or waits == 0 and 0 or 7
      if (code == 6 or code == 7) and is ~= code then
        redis.call('SETRANGE', ends, node, string.char(is))
        batch.stopped = batch.stopped + (is == 6 and 1 or 0) - (code == 6 and 1 or 0)
        note_change(batch, node, code, is)
        batch.released[#batch.released + 1] = is == 0 and node or nil
      end
    end
  end
  if #written > 0 then
    redis.call('HSET', nodes, unpack(written))
  end
end

-- Work out what follows from the changes of nodes; return whether there is more to do than one call may.
-- USES EDGES_MOST, STARTS_MOST, add_chore, batch_part, change_nodes, pass_on, seconds
local function work_off(batch, now)
  local key, left = batch_part('ripple', batch.id), EDGES_MOST
  if batch.stop then
    redis.call('DEL', key) -- no node is released any more
    return false
  end
  local later
  repeat
    for first = 1, #batch.changes, 1000 do
      redis.call('RPUSH', key, unpack(batch.changes, first, math.min(first + 999, #batch.changes)))
    end
    batch.changes = {}
    left, later = pass_on(batch, left)
    change_nodes(batch, later)
  until #batch.changes == 0
  for first = 1, #batch.released, STARTS_MOST do
    local last = math.min(first + STARTS_MOST - 1, #batch.released)
    batch.starts[#batch.starts + 1] = table.concat(batch.released, ',', first, last)
    add_chore(seconds(now), 'start', batch.id, batch.starts[#batch.starts])
  end
  if redis.call('LLEN', key) == 0 then
    return false
  end
  batch.rippled = batch.rippled + 1
  add_chore(seconds(now), 'ripple', batch.id, batch.rippled)
  return true
end

-- Push the ends of nodes to the lists of clients that wait for them.
-- USES batch_of, batch_part, end_class
local function answer_asked(batch)
  local left = {}
  for node in batch.asked:gmatch('%d+') do
    local code = redis.call('GETRANGE', batch_part('ends', batch.id), node, node):byte() or 0
    if end_class(code % 8) == 0 then
      left[#left + 1] = node
    else
      local key = batch_part('over', batch.id .. '/' .. node)
      redis.call('DEL', key)
      redis.call('RPUSH', key, code % 8)
      redis.call('PEXPIRE', key, 60000) -- a client that comes later reads that it has ended
    end
  end
  batch.asked = #left > 0 and table.concat(left, ' ')
  if not batch.asked then
    redis.call('HDEL', batch_of(batch.id), 'asked')
  end
end

-- Cancel the nodes that wait: the batch is stopped.
-- USES batch_part
local function cancel_waiting(batch)
  local key = batch_part('ends', batch.id)
  local ends, many = redis.call('GETRANGE', key, 0, batch.nodes - 1):gsub('\7', '\3')
  if many > 0 then
    redis.call('SETRANGE', key, 0, ends)
    batch.cancelled = batch.cancelled + many
  end
end
