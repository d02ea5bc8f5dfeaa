#!lua flags=no-writes,allow-cross-slot-keys
-- glance: moves nothing. Reads which of many queues have something to look after, and when their next jobs are due: one
-- call instead of one for each queue.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   now       seconds, '' = Redis's clock
-- ROWS   queue     its name; in a cluster, all queues are on one node
-- REPLY  now; for each queue that has any place, worker, recurrence, limit, chore or batch: its name; the due time of
--        its first job, '' = it has no schedule; '1' when jobs wait behind the gate, else '0'; '1' when it has workers
--        or a move between shards, else '0'; '1' when it has recurrences, else '0'; '1' when it has chores, else '0';
--        '1' when it is the home of batches, else '0'
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, rows, has_any, MEMBER_MOST
--
-- 1 us for each queue without anything, 6 us for any other. A queue that Redis refuses to read counts as one with a job
-- that is due: the call of that queue alone meets the error and reports it. Each command has keys of one queue: after
-- one with keys of several slots, a node of a cluster of Valkey 9 refuses all scripts until it restarts.

local now = unpack(ARGV, 1, 1)
now = clock(now)

local function flag(...)
  return redis.pcall('EXISTS', ...) ~= 0 and '1' or '0'
end

local reply = { seconds(now) }
local function report(name, prefix)
  local first = redis.pcall('ZRANGE', prefix .. 'schedule', 0, 0, 'WITHSCORES')
  local due = first.err and '0' or first[2] or ''
  if first[1] and #first[1] > MEMBER_MOST then
    due = '0' -- not a valid job: dispatch buries it
  end
  local at = #reply
  reply[at + 1], reply[at + 2] = name, due
  reply[at + 3] = flag(prefix .. 'backlog', prefix .. 'throttled')
  reply[at + 4] = flag(prefix .. 'leases', prefix .. 'dead_workers', prefix .. 'moving')
  reply[at + 5] = flag(prefix .. 'recurrences', prefix .. 'pauses')
  reply[at + 6] = flag(prefix .. 'chores')
  reply[at + 7] = flag(prefix .. 'batches')
end

for name in rows(2, 1) do
  local prefix = 'evsched:{' .. name .. '}:'
  if has_any(prefix) then
    report(name, prefix)
  end
end
return reply
