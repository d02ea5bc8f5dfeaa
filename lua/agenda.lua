#!lua flags=no-writes
-- agenda: moves nothing. The recurrences whose next occurrence is to be scheduled now, and when the next ones are.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        ahead     seconds: how long before its time an occurrence goes on the schedule
--        limit     how many at most
-- REPLY  now; the next planned time beyond those, seconds or ''; for each: name, score as it is stored, and the record
--        as a list of field, value, ...; it is empty when the key is gone or of another type
-- FAILS  none
-- TWICE  it only reads
-- USES   clock, seconds, recurrence

local now, ahead, limit = unpack(ARGV, 1, 3)
now = clock(now)

local found =
  redis.call('ZRANGE', recurrences, '-inf', seconds(now + tonumber(ahead)), 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
local agenda = {}
for i = 1, #found, 2 do
  local at = #agenda
  agenda[at + 1], agenda[at + 2] = found[i], found[i + 1]
  local fields = redis.pcall('HGETALL', recurrence(found[i]))
  agenda[at + 3] = fields.err and {} or fields
end
local rank = #found / 2
local beyond = redis.call('ZRANGE', recurrences, rank, rank, 'WITHSCORES')[2] or ''
return { seconds(now), beyond, agenda }
