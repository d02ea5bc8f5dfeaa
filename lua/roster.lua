#!lua flags=no-writes
-- roster: moves nothing. A slice of the recurrences of a queue, with the fields of their records that a list needs.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        start     count: how many to pass over, in the order of their next planned times
--        limit     count: how many at most, under 1000
-- ROWS   field     the name of a field
-- REPLY  now; for each: name, score as it is stored, and the values of the fields, nil for an absent one; none when the
--        record is gone or of another type
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, rows, recurrence, fields_of
--
-- About 10 us for each.

local now, start, limit = unpack(ARGV, 1, 3)
now = clock(now)

local names = {}
for field in rows(4, 1) do
  names[#names + 1] = field
end
local found = redis.call('ZRANGE', recurrences, start, start + limit - 1, 'WITHSCORES')
local listed = {}
for i = 1, #found, 2 do
  local values, at = fields_of(recurrence(found[i]), unpack(names)), #listed
  listed[at + 1], listed[at + 2] = found[i], found[i + 1]
  listed[at + 3] = values.err and {} or values
end
return { seconds(now), listed }
