#!lua flags=no-writes,allow-cross-slot-keys
-- survey: moves nothing. Reads the state of some queues that the janitor checks: the leases, whether jobs move to
-- another shard, and whether jobs wait, also beside idle workers.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   now       seconds, '' = Redis's clock
-- ROWS   queue     its name; in a cluster, all queues are on one node
-- REPLY  for each queue, a list: seconds since a batch of jobs began to move to another shard, '' = none moves; the id
--        of the first job in ready if workers wait for a message all the same, '' = none; '1' = a part of a limit is
--        reserved; '1' = jobs wait in ready or behind the gate; the workers that died and whose lists are watched; and
--        for each worker: its id; its lease end as it is stored; seconds until then; how many jobs its list holds; the
--        seconds of its lease while it holds jobs, '' = it does not say. It is nil for one of several queues that Redis
--        refuses to read. The last queues may be left out: see read_queues
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, size_of, read_queues
--
-- 8 us for each queue, and O(n) in its workers, about 2 us each. Each command has keys of one queue, as in `glance`.

local now = unpack(ARGV, 1, 1)
now = clock(now)

local function survey_of(prefix)
  local found = redis.call('ZRANGE', prefix .. 'leases', 0, -1, 'WITHSCORES')
  local batch = redis.pcall('HGET', prefix .. 'moving', '*')
  local since = type(batch) == 'string' and batch:match('^%d+ %S+ (%S+) %S+$')
  local first = size_of('ZCARD', prefix .. 'idle') > 0 and redis.pcall('LINDEX', prefix .. 'ready', 0)
  local reserved = redis.pcall('HEXISTS', prefix .. 'limits', 'reserved') == 1 and '1' or ''
  local wait = redis.call('EXISTS', prefix .. 'ready', prefix .. 'backlog', prefix .. 'throttled') > 0 and '1' or ''
  local died = redis.pcall('ZRANGE', prefix .. 'dead_workers', 0, -1)
  local survey = { since and seconds(now - since) or '', type(first) == 'string' and first or '', reserved, wait }
  survey[5] = died.err and {} or died
  for i = 1, #found, 2 do
    local at = #survey
    survey[at + 1], survey[at + 2] = found[i], found[i + 1]
    survey[at + 3] = seconds(tonumber(found[i + 1]) - now)
    survey[at + 4] = size_of('LLEN', prefix .. 'processing:' .. found[i])
    local busy = redis.pcall('HGET', prefix .. 'busy_leases', found[i])
    survey[at + 5] = type(busy) == 'string' and busy or ''
  end
  return survey, #found
end

return read_queues(2, survey_of)
