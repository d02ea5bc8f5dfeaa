#!lua flags=no-writes
-- agenda: moves nothing. The recurrences whose next occurrence is to be scheduled now, and when the next ones are; and
-- the paused ones whose pause is over.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        ahead     number: seconds: how long before its time an occurrence goes on the schedule
--        limit     count: how many at most
-- REPLY  now; the next planned time beyond those, seconds or ''; for each: name, score as it is stored, and the record
--        as a list of field, value, ...; it is empty when the key is gone or of another type; when the next pause ends,
--        seconds or ''; for each pause that is over: name, its end as it is stored, and the record; how many
--        recurrences were paused because of failures, and not reported yet
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, recurrence, pauses, newly_paused, size_of

local now, ahead, limit = unpack(ARGV, 1, 3)
now = clock(now)

local function with_records(found)
  local rows_of = {}
  for i = 1, #found, 2 do
    local at = #rows_of
    rows_of[at + 1], rows_of[at + 2] = found[i], found[i + 1]
    local fields = redis.pcall('HGETALL', recurrence(found[i]))
    rows_of[at + 3] = fields.err and {} or fields
  end
  return rows_of
end

local function until_then(command, key, last)
  return redis[command]('ZRANGE', key, '-inf', seconds(last), 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
end

local found = until_then('call', recurrences, now + tonumber(ahead))
local rank = #found / 2
local beyond = redis.call('ZRANGE', recurrences, rank, rank, 'WITHSCORES')[2] or ''
-- pcall: a key of another type holds no pauses, and has no elements as an error either.
local over = until_then('pcall', pauses, now)
rank = #over / 2
local ends = redis.pcall('ZRANGE', pauses, rank, rank, 'WITHSCORES')[2] or ''
return { seconds(now), beyond, with_records(found), ends, with_records(over), size_of('SCARD', newly_paused) }
