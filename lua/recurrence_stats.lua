#!lua flags=no-writes,allow-cross-slot-keys
-- recurrence_stats: moves nothing. When the latest run of each recurrence of some queues was due, and when one last
-- ended well.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   most      count: the limit of a queue; one with more recurrences is left out
-- ROWS   queue     its name; in a cluster, all queues are on one node
-- REPLY  for each queue, a list: for each recurrence: its name; the due of its latest run, '' = it has had none, or is
--        paused or retired; when a run last ended well, '' = none did. Both in seconds. It is nil for one of several
--        queues that Redis refuses to read. The last queues may be left out: see read_queues
-- FAILS  none
-- TWICE  it only reads
-- USES   size_of, moment_of, read_queues
--
-- O(n) in the recurrences of the queues, about 2 us each. Each command has keys of one queue, as in `glance`.

local most = unpack(ARGV, 1, 1)

local function stats_of(prefix)
  local found = {}
  redis.call('EXISTS', prefix .. 'recurrences') -- refused if another node has the queue by now
  local few = size_of('ZCARD', prefix .. 'recurrences') <= tonumber(most)
  local names = few and redis.pcall('ZRANGE', prefix .. 'recurrences', 0, -1) or {}
  for _, name in ipairs(names) do
    local run = redis.pcall(
      'HMGET',
      prefix .. 'recurrence:' .. name,
      'current_due',
      'last_success',
      'last_outcome',
      'last_finished',
      'paused',
      'retired'
    )
    if not run.err then
      -- An older evsched has not kept `last_success`.
      local success = moment_of(run[2]) or (run[3] == 'done' and moment_of(run[4]))
      local at = #found
      found[at + 1] = name
      found[at + 2] = not run[5] and not run[6] and moment_of(run[1]) or ''
      found[at + 3] = success or ''
    end
  end
  return found, 2 * #names -- a record takes twice as long as a key of read_queues
end

return read_queues(2, stats_of)
