#!lua flags=no-writes
-- survey: moves nothing. Reads the state that the janitor checks: the leases of a queue, whether jobs move to another
-- shard, and whether a job waits beside idle workers.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
-- REPLY  seconds since a batch of jobs began to move to another shard, '' = none moves; the id of the first job in
--        ready if workers wait for a message all the same, '' = none; '1' = a part of a limit is reserved; the workers
--        that died and whose lists are watched; and for each worker: its id; its lease end as it is stored; seconds
--        until then; how many jobs its list holds; the seconds of its lease while it holds jobs, '' = it does not say
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, size_of, processing, moving_batch, idle, limits, busy_leases, dead_workers
--
-- O(n) in the workers of the queue, about 1 us each.

local now = unpack(ARGV, 1, 1)
now = clock(now)

local found = redis.call('ZRANGE', leases, 0, -1, 'WITHSCORES')
local _, _, since = moving_batch()
local first = size_of('ZCARD', idle) > 0 and redis.pcall('LINDEX', ready, 0)
local reserved = redis.pcall('HEXISTS', limits, 'reserved') == 1 and '1' or ''
local died = redis.pcall('ZRANGE', dead_workers, 0, -1)
local reply = { since and seconds(now - since) or '', type(first) == 'string' and first or '', reserved }
reply[4] = died.err and {} or died
for i = 1, #found, 2 do
  local at = #reply
  reply[at + 1], reply[at + 2] = found[i], found[i + 1]
  reply[at + 3] = seconds(tonumber(found[i + 1]) - now)
  reply[at + 4] = size_of('LLEN', processing(found[i]))
  local busy = redis.pcall('HGET', busy_leases, found[i])
  reply[at + 5] = type(busy) == 'string' and busy or ''
end
return reply
