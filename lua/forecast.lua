#!lua flags=no-writes
-- forecast: moves nothing. How many jobs on the schedule are due in each of some spans of time.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   first     number or '': seconds: when the first span begins, '' = with the next whole second of Redis's clock
--        length    number: of a span, in seconds
--        spans     count: how many, under 1000
-- REPLY  when the first span begins; a number of jobs for each span, in their order
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds
--
-- A span ends before the next one begins. 1 us for each, and O(log n) in the schedule.

local first, length, spans = unpack(ARGV, 1, 3)
first = first == '' and math.ceil(clock('')) or tonumber(first)

local counts = {}
for at = 1, math.min(tonumber(spans), 999) do
  local begins, ends = first + (at - 1) * length, first + at * length
  counts[at] = redis.call('ZCOUNT', schedule, seconds(begins), '(' .. seconds(ends))
end
return { seconds(first), counts }
