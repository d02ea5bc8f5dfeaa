#!lua flags=no-writes
-- forecast: moves nothing. How many jobs on the schedule are due in each of some spans of time.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   first     seconds: when the first span begins
--        length    of a span, in seconds
--        spans     how many, under 1000
-- REPLY  a number of jobs for each span, in their order
-- FAILS  none
-- TWICE  it only reads
-- USES   seconds
--
-- A span ends before the next one begins. 1 us for each, and O(log n) in the schedule.

local first, length, spans = unpack(ARGV, 1, 3)
first = tonumber(first)

local counts = {}
for at = 1, tonumber(spans) do
  local begins, ends = first + (at - 1) * length, first + at * length
  counts[at] = redis.call('ZCOUNT', schedule, seconds(begins), '(' .. seconds(ends))
end
return counts
