#!lua flags=no-writes
-- look: moves nothing. Where a job is, and its record, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
-- REPLY  now; the place, '' = there is no such job; its score there, or ''; of a job that a worker holds, the score of
--        its id on the schedule; the record as field, value, ...; the redacted arguments that workers have
--        declared as task, JSON, ...
-- FAILS  none
-- TWICE  it only reads
-- USES   seconds, clock, place_of, field_of, readable_record, declared_redactions

local now, id = unpack(ARGV, 1, 2)
now = seconds(clock(now))
local place, score = place_of(id, field_of(id, 'worker'), field_of(id, 'finished'))
score = place == 'processing' and redis.call('ZSCORE', schedule, id) or score
return { now, place or '', score or '', readable_record(id), declared_redactions() }
