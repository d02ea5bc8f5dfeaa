#!lua flags=no-writes
-- recount: moves nothing. Compares what the gate counts with what is there, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   most      entries that are counted at the most
--        strays    workers that have a list and no lease, parted by blanks
-- ROWS   group     that has a backlog of its own, under 1000
-- REPLY  for each thing that is wrong: id or group, '' = the queue; code, see evsched/audit.py; where, or a detail
-- FAILS  none
-- TWICE  it only reads
--
-- O(n) in what has passed the gate, about 1 us each; above `most` it says so and counts nothing.

local most, strays = unpack(ARGV, 1, 2)

local reply = {}
local function wrong(id, code, where)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = id, code, where
end

local changes, total = miscounts(strays, tonumber(most))
if not changes then
  wrong('', 'uncounted', tostring(total))
elseif #changes > 0 then
  wrong('', 'inside', tostring(#changes / 2))
end
for group in rows(3, 1) do
  if wrong_of_group(group) == 'stranded' then
    wrong(group, 'stranded', '')
  end
end
for _, group in ipairs(redis.call('ZRANGE', closed, 0, 999)) do
  if wrong_of_group(group) == 'closed' then
    wrong(group, 'closed', '')
  end
end
return reply
