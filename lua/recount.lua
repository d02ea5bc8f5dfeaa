#!lua flags=no-writes
-- recount: moves nothing. Compares the counts of the gate with the contents of the places, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   most      count: entries that are counted at most
--        strays    workers that have a list and no lease, separated by spaces
-- ROWS   group     with a backlog of its own, under 1000
-- REPLY  for each violation: id or group, '' = the queue; code, see diagnostics/audit.py; where, or a detail
-- FAILS  none
-- TWICE  it only reads
-- USES   miscounts, rows, group_violation, throttled
--
-- O(n) in the jobs that have passed the gate, 0.8 us each: 4 ms at 10,000 entries, two for each job. Above `most` it
-- reports only that.

local most, strays = unpack(ARGV, 1, 2)

local reply = {}
local function wrong(id, code, where)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = id, code, where
end

local changes, total = miscounts(strays, tonumber(most))
if not changes then
  wrong('', 'uncounted', tostring(total))
else
  -- Each job by its id, so that a caller who looks twice knows whether it is the same; the sums only if all jobs are
  -- right.
  for i = 1, math.min(#changes, 500), 2 do
    if not changes[i]:find('^[*#]') then
      wrong(changes[i], 'in_flight', changes[i + 1] and 'it is in hand and not counted' or 'it is counted and has left')
    end
  end
  if #changes > 0 and #reply == 0 then
    wrong('', 'in_flight', 'the sums')
  end
end
for group in rows(3, 1) do
  if group_violation(group) == 'stranded' then
    wrong(group, 'stranded', '')
  end
end
for _, group in ipairs(redis.call('ZRANGE', throttled, 0, 999)) do
  if group_violation(group) == 'throttled' then
    wrong(group, 'throttled', '')
  end
end
return reply
