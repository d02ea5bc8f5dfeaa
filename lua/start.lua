#!lua flags=allow-oom
-- start: ready -> processing, the second half of a take. Counts the attempt of what BLMOVE took, and takes more.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who takes
--        lease     seconds: the worker holds jobs from here on, so its lease is the short one
--        hold      how many jobs it may hold in all, under 1000
-- ROWS   id        already in the worker's list: what BLMOVE took, or what a lost reply left there
-- REPLY  now; '1' when ready holds more, else '0'; '1' when the worker had a lease, '0' when it was lost;
--        list of id, attempt, due, payload, planned of what is to run;
--        list of id, reason of what went to dead
-- FAILS  none
-- TWICE  a job that this worker has started already is handed out again with the same attempt, one that has ended is
--        not; `hold` bounds the rest
--
-- About 3 us a job. A job in two lists (its id was scheduled again between BLMOVE and start) runs in one of them;
-- the other is put back on the schedule by the verb that ends the run.

local now, worker, lease, hold = unpack(ARGV, 1, 4)
now = clock(now)
local list = processing(worker)

-- These reads also refuse a key of the wrong type before anything is written.
redis.call('ZCARD', dead)
local more = tonumber(hold) - redis.call('LLEN', list)
local ids = {}
for id in rows(5, 1) do
  if redis.call('LPOS', list, id) then
    ids[#ids + 1] = id
  end
end
local given = #ids
if more > 0 then
  admit(more, now)
  local taken = redis.call('LRANGE', ready, 0, more - 1)
  if #taken > 0 then
    redis.call('RPUSH', list, unpack(taken))
    redis.call('LTRIM', ready, #taken, -1)
    for _, id in ipairs(taken) do
      ids[#ids + 1] = id
    end
  end
end
admit(0, now)

local started, buried, freed = {}, {}, false
local moment = seconds(now)
for i, id in ipairs(ids) do
  local key = record(id)
  local run = redis.pcall('HMGET', key, 'payload', 'attempt', 'due', 'worker', 'finished', 'stop', 'planned', 'group')
  local payload, attempt, due, holder, finished, stop, planned, group = unpack(run)
  local elsewhere = holder and not finished and holder ~= worker and redis.call('LPOS', processing(holder), id)
  if not payload then
    local reason, kept = 'its record was gone when a worker took it: DEL a record only after a ZREM of its id', id
    if run.err then
      reason = 'the key of its record is not a hash: DEL it and schedule the job again'
      kept = 'bad-' .. redis.sha1hex(id)
      redis.call('HSET', record(kept), 'member', id)
    end
    redis.call('LREM', list, 1, id)
    leave(id)
    entomb(kept, 'dead', reason, now)
    buried[#buried + 1] = kept
    buried[#buried + 1] = reason
  elseif not due and redis.call('ZSCORE', schedule, id) then
    -- The job of this id was replaced between BLMOVE and start, and a new one waits for its own time.
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif stop and not finished then
    abort(id, 'cancelled before it ran', RETENTION, '', now)
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif elsewhere then
    redis.call('HSET', key, 'again', due or moment)
    redis.call('LREM', list, -1, id)
  else
    if finished then
      redis.call('PERSIST', key)
      clear_ended(id)
      redis.call('ZREM', dead, id)
      attempt = nil
    end
    if i <= given and holder ~= worker and unline(id) then
      -- It was scheduled again and dispatched between BLMOVE and now: as when it falls due while it runs.
      redis.call('HSET', key, 'again', due or moment)
      freed = true
    end
    if counting then
      -- It is already, but when it lay in two lists and the run in the other has ended.
      enter(id, group or '')
    end
    if finished or holder ~= worker then
      attempt = tostring(tonumber(attempt or 0) + 1)
      redis.call('HSET', key, 'attempt', attempt, 'worker', worker, 'started', moment)
    end
    local at = #started
    started[at + 1], started[at + 2], started[at + 3], started[at + 4] = id, attempt, due or moment, payload
    started[at + 5] = planned or due or moment
  end
end

if freed then
  admit(0, now)
end
local leased = redis.call('ZSCORE', leases, worker)
if redis.call('LLEN', list) > 0 then
  -- Not for one that holds nothing: it beats seldom, and keeps its long lease.
  redis.call('ZADD', leases, seconds(now + tonumber(lease)), worker)
end
return { moment, redis.call('LLEN', ready) > 0 and '1' or '0', leased and '1' or '0', started, buried }
