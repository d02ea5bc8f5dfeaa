#!lua flags=no-writes
-- look: moves nothing. Where a job is, and its record, in one moment.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
-- REPLY  now; the place, '' = there is no such job; its score there, or ''; the record as field, value, ...
-- FAILS  none
-- TWICE  it only reads

local now, id = unpack(ARGV, 1, 2)
now = seconds(clock(now))
local key = record(id)
local run = redis.call('HMGET', key, 'worker', 'finished')
local fields = redis.call('HGETALL', key)

local place, score = place_of(id, run[1], run[2])
return { now, place or '', score or '', fields }
