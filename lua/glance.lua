#!lua flags=no-writes,allow-cross-slot-keys
-- glance: moves nothing. Reads which of many queues have something to look after, and when their next jobs are due: one
-- call instead of one for each queue.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   now       seconds, '' = Redis's clock
--        only      'schedule' = leave out the queues without a schedule, '' = those without any place, worker or limit
-- ROWS   queue     its name; in a cluster, all queues are on one node
-- REPLY  now; for each queue that is not left out: its name; the due time of its first job, '' = it has no schedule;
--        '1' when jobs wait behind the gate, else '0'; '1' when it has workers or a move between shards, else '0'; '1'
--        when it has recurrences, else '0'
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, rows, MEMBER_MOST
--
-- 0.3 us for each queue without a schedule, 2 us for one without anything, 6 us for any other. A queue that Redis
-- refuses to read counts as one with a job that is due: the call of that queue alone meets the error and reports it.

local now, only = unpack(ARGV, 1, 2)

-- In a cluster a command takes keys of one slot only, so a slice of several queues is refused.
local SLICE = 100
local PLACES = { 'schedule' }
if only == '' then
  SLICE = 10
  PLACES =
    { 'schedule', 'backlog', 'throttled', 'ready', 'dead', 'leases', 'moving', 'recurrences', 'pauses', 'limits' }
end

local function keys_of(name, places, into)
  for _, place in ipairs(places) do
    into[#into + 1] = 'evsched:{' .. name .. '}:' .. place
  end
  return into
end

local function has(name, ...)
  return redis.pcall('EXISTS', unpack(keys_of(name, { ... }, {}))) ~= 0
end

local reply = { seconds(clock(now)) }
local function read(name)
  local first = redis.pcall('ZRANGE', keys_of(name, { 'schedule' }, {})[1], 0, 0, 'WITHSCORES')
  local due = first.err and '0' or first[2] or ''
  if due ~= '' and not first.err and #first[1] > MEMBER_MOST then
    due = '0' -- it is no job: dispatch buries it
  end
  local at = #reply
  reply[at + 1], reply[at + 2] = name, due
  reply[at + 3] = has(name, 'backlog', 'throttled') and '1' or '0'
  reply[at + 4] = has(name, 'leases', 'moving') and '1' or '0'
  reply[at + 5] = has(name, 'recurrences', 'pauses') and '1' or '0'
end

local slice, names = {}, {}
local function look()
  if #names > 0 and redis.pcall('EXISTS', unpack(slice)) ~= 0 then
    for _, name in ipairs(names) do
      if has(name, unpack(PLACES)) then
        read(name)
      end
    end
  end
  slice, names = {}, {}
end

for name in rows(3, 1) do
  names[#names + 1] = name
  keys_of(name, PLACES, slice)
  if #names == SLICE then
    look()
  end
end
look()
return reply
