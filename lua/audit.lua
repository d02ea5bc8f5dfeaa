#!lua flags=no-writes
-- audit: moves nothing. Checks ids against all their places and their records, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        from      where the ids were met, `processing:<worker>` or `backlog:<group>`, '' = anywhere else
--        strays    workers that have a list and no lease, separated by spaces
-- ROWS   id        at most 250
-- REPLY  for each violation: id; code, see diagnostics/audit.py; where, or a detail
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, rows, violations_of
--
-- About 5 us an id, and O(n) in ready and in the lists of the workers that the records name.

local now, from, strays = unpack(ARGV, 1, 3)
now = clock(now)

local reply = {}
for id in rows(4, 1) do
  for _, wrong in ipairs(violations_of(id, from, strays, now)) do
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3] = id, wrong[1], wrong[2]
  end
end
return reply
