#!lua flags=allow-oom,allow-cross-slot-keys
-- request_status: moves nothing. Asks the workers of some queues for their status.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   asker     who asks: it is a part of the name of the channel for the replies
-- ROWS   queue     its name
-- REPLY  for each queue, how many workers were asked; in a cluster, only the workers at this node count
-- FAILS  none
-- TWICE  the workers reply once more
-- USES   rows
--
-- 1 us for each queue, and less for each of its workers. PUBLISH alone does the same for one queue.

local asker = unpack(ARGV, 1, 1)

local asked = {}
for queue in rows(2, 1) do
  local channel = 'evsched:{' .. queue .. '}:status'
  asked[#asked + 1] = redis.call('PUBLISH', channel, channel .. ':' .. asker)
end
return asked
