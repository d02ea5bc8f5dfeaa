#!lua flags=allow-oom,allow-cross-slot-keys
-- forget: moves nothing. Deletes the announcements of former workers, for each of many queues that has nothing
-- else and that no worker has served for a day.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   now       seconds, '' = Redis's clock
-- ROWS   queue     its name; in a cluster, all queues are on one node
-- REPLY  the names of the queues of which nothing is left
-- FAILS  none
-- TWICE  the second call finds nothing to delete, and replies the same
-- USES   clock, seconds, rows, has_any
--
-- A worker that starts meanwhile writes these keys again: its lease comes last, and the reply to that or to a later
-- heartbeat says that `revisions` was lost. A queue that Redis refuses to read counts as one that has something. Each
-- command has keys of one queue, as in `glance`. 5 us for each queue.

local now = unpack(ARGV, 1, 1)
now = clock(now)

-- How many apps of a queue are forgotten in one call. More than that: another call forgets the rest.
local APPS_MOST = 10

-- Whether a worker, or a parent that stands by, was registered in the last day. A key of another type names none.
local function was_served(prefix)
  local count = redis.pcall('ZCOUNT', prefix .. 'programs', seconds(now - 86400), '+inf')
  return type(count) == 'number' and count > 0
end

local forgotten = {}
for name in rows(2, 1) do
  local prefix = 'evsched:{' .. name .. '}:'
  if not (has_any(prefix) or redis.pcall('EXISTS', prefix .. 'declared_limits') ~= 0 or was_served(prefix)) then
    local index = prefix .. 'apps'
    local gone = { prefix .. 'programs', prefix .. 'tasks', prefix .. 'redactions' }
    local owners = redis.pcall('SRANDMEMBER', index, APPS_MOST)
    for _, owner in ipairs(owners) do
      gone[#gone + 1] = prefix .. 'revisions:' .. owner
    end
    if #owners < APPS_MOST then
      gone[#gone + 1] = index
      forgotten[#forgotten + 1] = name
    else
      redis.call('SREM', index, unpack(owners))
    end
    redis.pcall('DEL', unpack(gone))
  end
end
return forgotten
