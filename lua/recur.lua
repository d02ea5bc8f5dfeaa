#!lua
-- recur: a recurrence's next occurrences -> schedule, ahead of their time; and moves the recurrence on.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock; when this was planned
--        name      of the recurrence
--        seen      its score, as the caller read it
--        next      score: the planned time after those in the rows, '+inf' = none
--        missed    count: how many planned times passed without an occurrence
--        reason    why it cannot recur, '' = it does
-- ROWS   id        name@planned
--        planned   Unix seconds
--        due       score: Unix seconds: planned, its part of the spread, its window's opening
--        misfire_grace     seconds after which it was missed rather than late, '' = it makes up for missed ones
-- REPLY  ids of the jobs that were put on the schedule, none if an occurrence is under way from whose end the next one
--        is counted; false when the score is not `seen` any more
-- FAILS  none
-- TWICE  the second call finds that it has moved on
-- USES   clock, recurrence, made_of, expect, ahead_of, rows, record, write_record, seconds, tally,
--        begin_requests_if_free, occurrence_of, unended, RECURRING, whole_seconds
--
-- Any number of dispatchers may call this for the same occurrences: only one of them moves the recurrence on. It also
-- begins the next requested run, in case a client deleted the job whose end would have.

local now, name, seen, next, missed, reason = unpack(ARGV, 1, 6)
now = clock(now)
local key = recurrence(name)

if redis.call('ZSCORE', recurrences, name) ~= seen then
  return false
end
local job = redis.call('HMGET', key, 'payload', 'priority', 'group', 'count', 'made', 'after', 'current')
-- A malformed `count` ends the recurrence; the caller passes the reason.
local most, made = job[4] and (tonumber(job[4]) or 0) or math.huge, made_of(job[5])
expect('ZCARD', schedule)
expect('HLEN', key)

local put, ahead = {}, ahead_of(name)
local current = occurrence_of(name, job[7])
local under_way = job[6] == 'end' and (ahead[1] or (current and unended(current)))
for id, planned, due, misfire_grace in rows(7, 4) do
  if made < most and not under_way then
    made = made + 1
    local new = record(id)
    if redis.call('EXISTS', new) == 0 then
      redis.call('ZADD', schedule, due, id)
      -- A group of their own, so that thousands in one minute do not go before all jobs without a group.
      write_record(new, job[1] or '', job[2] or '', job[3] or RECURRING, whole_seconds(now))
      redis.call('HSET', new, 'recurrence', name, 'planned', planned, 'misfire_grace', misfire_grace)
      put[#put + 1] = id
      ahead[#ahead + 1] = id
    end
  end
end
redis.call('HSET', key, 'made', made, 'ahead', table.concat(ahead, ' '), 'moved', seconds(now))
if tonumber(missed) > 0 then
  tally(name, 'missed', missed)
end
if reason ~= '' then
  redis.call('HSET', key, 'reason', reason)
else
  redis.call('HDEL', key, 'reason')
end
redis.call('ZADD', recurrences, made < most and next or '+inf', name)
begin_requests_if_free(name, 1, now)
return put
