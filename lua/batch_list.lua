#!lua flags=no-writes
-- batch_list: moves nothing. A slice of the batches whose home is a queue, the newest first, with fields of each.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        start      count: how many to pass over
--        limit      count: how many at most, under 1000
-- ROWS   field      the name of a field
-- REPLY  now; how many batches there are; for each of the slice: id, and the values of the fields, nil for an absent
--        one; none when its hash is gone or of another type
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, rows, batches, batch_of, fields_of
--
-- About 8 us for each.

local now, start, limit = unpack(ARGV, 1, 3)
now = clock(now)

local names = {}
for field in rows(4, 1) do
  names[#names + 1] = field
end
local listed = {}
for _, id in ipairs(redis.call('ZRANGE', batches, start, start + limit - 1, 'REV')) do
  local values, at = fields_of(batch_of(id), unpack(names)), #listed
  listed[at + 1], listed[at + 2] = id, values.err and {} or values
end
return { seconds(now), redis.call('ZCARD', batches), listed }
