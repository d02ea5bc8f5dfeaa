#!lua flags=no-writes
-- queue_stats: moves nothing. How many jobs each place holds, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
-- REPLY  now; how many are in schedule, of those how many are due, in backlog, ready, processing and dead; how many
--        workers have a lease; the next due, seconds or ''; since when the queue is paused, seconds or ''; the due of
--        the front of ready, or of the backlog when ready is empty, seconds or ''; how many parents stand by, which
--        have no worker process and start one when a job waits; when a pause ends by itself, seconds or ''; why the
--        queue is paused, ''
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, throttled, size_of, group_backlog, processing, seconds, policy, is_paused, limits, moment_of,
--        field_of, parents
--
-- A place may be several keys: each group that its own limits hold back has a backlog of its own. O(log n), and O(n) in
-- the workers and in the groups that are held back.

local now = unpack(ARGV, 1, 1)
now = clock(now)

local waiting = redis.call('ZCARD', backlog)
for _, group in ipairs(redis.call('ZRANGE', throttled, 0, -1)) do
  waiting = waiting + size_of('ZCARD', group_backlog(group))
end
local workers, held = redis.call('ZRANGE', leases, 0, -1), 0
for _, worker in ipairs(workers) do
  held = held + size_of('LLEN', processing(worker))
end
local front = redis.call('LRANGE', ready, 0, 0)[1] or redis.call('ZRANGE', backlog, 0, 0)[1]
return {
  seconds(now),
  redis.call('ZCARD', schedule),
  redis.call('ZCOUNT', schedule, '-inf', seconds(now)),
  waiting,
  redis.call('LLEN', ready),
  held,
  redis.call('ZCARD', dead),
  #workers,
  redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2] or '',
  is_paused(now) and (moment_of(policy.paused) or seconds(now)) or '',
  front and moment_of(field_of(front, 'due')) or '',
  size_of('ZCOUNT', parents, seconds(now), '+inf'),
  policy.paused_until or '',
  redis.call('HGET', limits, 'paused_why') or '',
}
