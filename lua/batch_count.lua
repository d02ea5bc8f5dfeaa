#!lua flags=allow-oom
-- batch_count: moves nothing. Counts ends of members, which are reported to the home of their batch.
--
-- KEYS   root       prefix of the keys of the home
-- ARGV   now        seconds, '' = Redis's clock
-- ROWS   id         of a batch
--        first      count: an ordinal
--        ends       for each ordinal from there on a byte: the number of a code of _batches.lua, and 8 for each turn; 0
--                   = no report. At most 10,000 in a call
-- REPLY  for each batch that has ended with this call, or of whose graph nodes were released: id, state, and the
--        ordinals of the chores `start` of this call, with spaces between the chores
-- FAILS  none
-- TWICE  the second call changes nothing. Reports may also come in any order
-- USES   clock, rows, expect, read_batch, apply_ends, decide
--
-- Those of a batch that is not there are ignored: its retention is over. About 0.3 us an ordinal.

local now = unpack(ARGV, 1, 1)
now = clock(now)
expect('ZCARD', root .. 'chores')

local known, order, reply = {}, {}, {}
for id, first, ends in rows(2, 3) do
  if known[id] == nil then
    known[id] = read_batch(id) or false
    order[#order + 1] = known[id] or nil
  end
  if known[id] then
    apply_ends(known[id], tonumber(first), ends)
  end
end
for _, batch in ipairs(order) do
  local round = batch.round
  decide(batch, now)
  if batch.round > round or #batch.starts > 0 then
    for _, word in ipairs({ batch.id, batch.state, table.concat(batch.starts, ' ') }) do
      reply[#reply + 1] = word
    end
  end
end
return reply
