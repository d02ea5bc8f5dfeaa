#!lua flags=no-writes,allow-cross-slot-keys
-- queue_stats: moves nothing. How many jobs each place of some queues holds, in one moment.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   now       seconds, '' = Redis's clock
--        lead      number: how many seconds ahead of `now` to count due jobs and wanted slots, and to look for the end
--                  of a pause
-- ROWS   queue     its name; in a cluster, all queues are on one node
-- REPLY  now; a list with, for each queue, a list: how many are in schedule, of those how many are due, in backlog,
--        ready, processing and dead; how many workers have a lease; the next due, seconds or ''; since when the queue
--        is paused, seconds or ''; the due of the front of ready, or of the backlog when ready is empty, seconds or '';
--        how many parents stand by, which have no worker process and start one when a job waits; when a pause ends by
--        itself, seconds or ''; why the queue is paused, ''; a list about the batches of the queue: how many have not
--        ended, how many of their jobs have not, and how many were done, have failed, and were cancelled, nil = 0; and
--        how many slots its jobs want. It is empty for a queue that has nothing, and nil for one of several that Redis
--        refuses to read. The last queues may be left out: see read_queues
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, size_of, moment_of, limit_of, has_any, read_queues
--
-- Jobs in ready and processing want slots. Unless the queue is paused, so do due jobs and jobs in backlog, up to the
-- limit of jobs in flight. Jobs that the limits of their groups hold back want none.
--
-- A place may be several keys: each group that its own limits hold back has a backlog of its own. O(log n), and O(n) in
-- the workers and in the groups that are held back, 1 us for each of these. 3 us for each queue without anything, 20
-- us for any other. Each command has keys of one queue, as in `glance`.

local now, lead = unpack(ARGV, 1, 2)
now = clock(now)
local by = now + tonumber(lead)

-- How many jobs the keys of workers or groups hold.
local function total(count, key, names)
  local jobs = 0
  for _, name in ipairs(names) do
    jobs = jobs + size_of(count, key .. name)
  end
  return jobs
end

local function due_of(prefix, id)
  local key, text = prefix .. 'job:' .. id, redis.pcall('HGET', prefix .. 'light', id)
  if type(text) == 'string' then
    return moment_of(text:match('^%S+ %S+ =?(%S+)')) or '' -- of a light job
  end
  local due = size_of('HSTRLEN', key, 'due') < 32 and redis.pcall('HGET', key, 'due')
  return type(due) == 'string' and moment_of(due) or ''
end

local function stats_of(prefix)
  if not has_any(prefix) then
    return {}, 0
  end
  local fields = { 'paused', 'paused_until', 'paused_why', 'concurrency' }
  local since, ends, why, most = unpack(redis.call('HMGET', prefix .. 'limits', unpack(fields)))
  ends = moment_of(ends or nil)
  local is_closed = since and by < tonumber(ends or math.huge)
  local planned = prefix .. 'schedule'
  local first = redis.call('ZRANGE', planned, 0, 0, 'WITHSCORES')[2]
  local sums = redis.pcall('HMGET', prefix .. 'batch_sums', 'live', 'jobs', 'done', 'failed', 'cancelled')
  local workers = redis.call('ZRANGE', prefix .. 'leases', 0, -1)
  local groups = redis.call('ZRANGE', prefix .. 'throttled', 0, -1)
  local front = redis.call('LRANGE', prefix .. 'ready', 0, 0)[1] or redis.call('ZRANGE', prefix .. 'backlog', 0, 0)[1]
  local due = first and redis.call('ZCOUNT', planned, '-inf', seconds(by)) or 0
  local behind, ahead = redis.call('ZCARD', prefix .. 'backlog'), redis.call('LLEN', prefix .. 'ready')
  local run = total('LLEN', prefix .. 'processing:', workers)
  local passed, limit = ahead + run, math.floor(limit_of(most or nil) or math.huge)
  local wanted = is_closed and passed or math.max(passed, math.min(passed + due + behind, limit))
  local stats = {
    redis.call('ZCARD', planned),
    due,
    behind + total('ZCARD', prefix .. 'backlog:', groups),
    ahead,
    run,
    redis.call('ZCARD', prefix .. 'dead'),
    #workers,
    first or '',
    is_closed and (moment_of(since) or seconds(now)) or '',
    front and due_of(prefix, front) or '',
    size_of('ZCOUNT', prefix .. 'parents', seconds(now), '+inf'),
    ends or '',
    why or '',
    sums.err and {} or sums,
    wanted,
  }
  return stats, #workers + #groups
end

return { seconds(now), read_queues(3, stats_of) }
