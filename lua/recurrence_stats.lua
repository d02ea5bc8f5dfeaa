#!lua flags=no-writes
-- recurrence_stats: moves nothing. When the latest run of each recurrence was due, and when one last ended well.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   most      count: the limit; a queue with more recurrences is left out
-- REPLY  for each recurrence: its name; the due of its latest run, '' = it has had none, or is paused or retired; when
--        a run last ended well, '' = none did. Both in seconds
-- FAILS  none
-- TWICE  it only reads
-- USES   size_of, recurrence, moment_of
--
-- O(n) in the recurrences of the queue, about 2 us each.

local most = unpack(ARGV, 1, 1)

local found = {}
local names = size_of('ZCARD', recurrences) <= tonumber(most) and redis.pcall('ZRANGE', recurrences, 0, -1) or {}
for _, name in ipairs(names) do
  local run = redis.pcall(
    'HMGET',
    recurrence(name),
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
return found
