#!lua flags=no-writes,allow-cross-slot-keys
-- roster: moves nothing. A slice of the recurrences of some queues, with the fields of their records that a list needs.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   now       seconds, '' = Redis's clock
--        fields    their names, with spaces between them
--        limit     count: how many recurrences at most, of all queues together, under 1000
-- ROWS   queue     its name; in a cluster, all queues are on one node
--        start     count: how many to pass over, in the order of their next planned times
--        most      count: how many of this queue, at most
-- REPLY  now; a list with, for each queue, a list: how many recurrences it has; for each of the slice: name, score as
--        it is stored, and the values of the fields, nil for an absent one; none when the record is gone or of another
--        type. It is nil for one of several queues that Redis refuses to read. The last queues may be left out: see
--        read_parts
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, rows, fields_of, read_parts
--
-- About 10 us for each, 0.5 us without fields, and 2 us for each queue. Each command has keys of one queue, as in
-- `glance`.

local now, fields, limit = unpack(ARGV, 1, 3)
now, limit = clock(now), tonumber(limit)

local names = {}
for field in fields:gmatch('%S+') do
  names[#names + 1] = field
end

local parts, listed = {}, 0
for queue, start, most in rows(4, 3) do
  parts[#parts + 1] = { prefix = 'evsched:{' .. queue .. '}:', start = tonumber(start), most = tonumber(most) }
end

local function read(part)
  local count = math.max(1, math.min(part.most, limit - listed))
  local last = part.start + count - 1
  local found = redis.call('ZRANGE', part.prefix .. 'recurrences', part.start, last, 'WITHSCORES')
  local slice = { redis.call('ZCARD', part.prefix .. 'recurrences') }
  for i = 1, #found, 2 do
    local at, values = #slice, {}
    if names[1] then
      values = fields_of(part.prefix .. 'recurrence:' .. found[i], unpack(names))
    end
    slice[at + 1], slice[at + 2], slice[at + 3] = found[i], found[i + 1], values.err and {} or values
  end
  listed = listed + #found / 2
  return slice, #found / 2
end

return { seconds(now), read_parts(parts, limit - 1, read) }
