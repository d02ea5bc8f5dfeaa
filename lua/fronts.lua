#!lua flags=no-writes,allow-cross-slot-keys
-- fronts: moves nothing. The jobs of some queues that are to move next: `evsched doctor` looks if they do.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   most      count: bytes of an id that are read; an inline job may be long
-- ROWS   queue     its name; in a cluster, all queues are on one node
-- REPLY  for each queue, a list: the first id on the schedule; its score; the fields due, again, started and finished
--        of its record, which change when it runs; the first id in the backlog; its score; the first id in ready; each
--        '' = none. It is nil for one of several queues that Redis refuses to read. The last queues may be left out:
--        see read_queues
-- FAILS  none
-- TWICE  it only reads
-- USES   fields_of, read_queues
--
-- 8 us for each queue. Each command has keys of one queue, as in `glance`.

local most = unpack(ARGV, 1, 1)

local MOVED = { 'due', 'again', 'started', 'finished' }

local function front_of(key)
  local id, score = unpack(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES'))
  return (id or ''):sub(1, tonumber(most)), score or ''
end

local function fronts_of(prefix)
  local due, due_at = front_of(prefix .. 'schedule')
  local waiting, waiting_at = front_of(prefix .. 'backlog')
  local first = redis.call('LRANGE', prefix .. 'ready', 0, 0)[1] or ''
  local fields = fields_of(prefix .. 'job:' .. due, unpack(MOVED))
  local front = { due, due_at }
  for i = 1, #MOVED do
    front[#front + 1] = not fields.err and fields[i] or ''
  end
  front[7], front[8], front[9] = waiting, waiting_at, first
  return front, 0
end

return read_queues(2, fronts_of)
