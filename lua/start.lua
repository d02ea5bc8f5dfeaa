#!lua flags=allow-oom
-- start: ready -> processing, the second half of a fetch. Counts the attempts of the jobs that BLMOVE moved, and
-- fetches more: as many as are asked for, but not the other workers' share.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who fetches
--        lease     number: seconds: the worker holds jobs from here on, so its lease is the short one
--        hold      count: how many jobs it may hold in all, under 1000
--        cap       count: bytes that a payload may have; it may have been replaced since dispatch checked it
--        ticket    count or '': if it finds ready empty and may hold more, the worker waits for a message: of a job
--                  that is handed over, with this ticket; an empty one if the ticket is 0. '' = it does not wait
-- ROWS   id        already in the worker's list: moved there by BLMOVE, or left there by a lost reply
-- REPLY  now; '1' when ready holds more, else '0'; '1' when the worker waits for a message from here on, else '0'; '1'
--        when it had a lease, '0' when it was lost; how many jobs its list holds;
--        list of id, run, due, payload, planned of the jobs to run; a run is named by its attempt and when it started;
--        list of id, reason of the jobs that went to dead;
--        list of id, deaths, doubts, counted of the suspects among them: how many workers died that held the job, in
--        how many of those runs it is not known whether the job had begun, and how many such runs `attempt` counts
-- FAILS  none
-- TWICE  a job that this worker has started already is handed out again with the same attempt, one that has ended is
--        not; `hold` bounds the rest
-- RARE   batch_holds, return_to_backlog, bury, abort, remove_waiting, keep_misnamed, uncount_run, with_failure, leave,
--        enter, field_of, holds, worker_of, size_of, begin_count, judge_groups, reopen, spend, tokens, end_queue_pause,
--        note_turns, joined_rows, milliseconds, start_first
-- USES   clock, processing, expect, expect_gate, rows, admit, seconds, size_of, hand_out, idle, busy_leases,
--        write_history, find_light, light_text, counting, suspecting, name_of_run, first_sizes, policy, throttled,
--        light_jobs, light, seats, hand_over
--
-- About 3 us a job. The payloads of a call are bounded: jobs beyond the bound stay in ready or, if they are in the
-- rows, in the worker's list. An id can be in the lists of two workers, if it was scheduled again and dispatched
-- between BLMOVE and `start`. It then runs once, with the current record, because both due times came before that run
-- began: the other worker drops it, also if the run has ended by then.

local now, worker, lease, hold, cap, ticket = unpack(ARGV, 1, 6)
now, cap = clock(now), tonumber(cap)
local ends = now + tonumber(lease)
local list = processing(worker)

-- How many bytes of records one call reads; one job at least.
local BYTES_MOST = 1048576
-- A worker takes up to this number of jobs whatever its share is: fewer are not worth a call of their own.
local SHARE_LEAST = 4
-- A worker that holds its part of all jobs already takes this fraction of an equal part of the waiting jobs.
local BEYOND = 0.25

expect('LLEN', list)
expect('ZCARD', dead, leases, ticket ~= '' and idle or nil)
expect_gate()

-- Each question ends the seat of the one before: a worker takes no message that has an older ticket.
local since = redis.pcall('ZSCORE', idle, worker)
if type(since) == 'string' then
  redis.call('ZREM', idle, worker)
  redis.pcall('HDEL', seats, worker)
end

-- How many of `most` jobs this worker may take now. If fewer wait than all workers could take, each has a right to an
-- equal part of the jobs that wait or are held. How many slots the others have is not known. So a worker that holds its
-- part takes some more and asks again, until none wait; by then the others have been woken. O(workers), 0.5 us each,
-- and only if fewer jobs wait than all could take.
local function share(held, most)
  local waiting, workers = first_sizes[ready] + first_sizes[backlog], first_sizes[leases]
  if workers < 2 or waiting >= most * workers then
    return most
  end
  local all = waiting
  for _, other in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    all = all + size_of('LLEN', processing(other))
  end
  local part = math.max(math.ceil(all / workers) - held, math.ceil(BEYOND * waiting / workers))
  return math.min(most, math.max(part, SHARE_LEAST))
end

local held = first_sizes[list]
local more = tonumber(hold) - held
if more > SHARE_LEAST then
  more = share(held, more)
end
local ids, known = {}, {}
-- An id that was scheduled again and dispatched before it started is here twice: it is one run, with the current
-- record.
local function add(id)
  if not known[id] then
    known[id] = true
    ids[#ids + 1] = id
  elseif #redis.call('LPOS', list, id, 'COUNT', 2) > 1 then
    redis.call('LREM', list, -1, id)
  end
end
for id in rows(7, 1) do
  if redis.call('LPOS', list, id) then
    add(id)
  end
end
local given = #ids
local taken = {}
if more > 0 then
  admit(more, now)
  taken = redis.call('LRANGE', ready, 0, more - 1)
end
if #taken > 0 then
  redis.call('RPUSH', list, unpack(taken))
  redis.call('LTRIM', ready, #taken, -1)
  for i = 1, #taken do
    add(taken[i])
  end
end
if #taken > 0 or more <= 0 then
  admit(0, now)
end

local out = { started = {}, buried = {}, suspected = {}, room = math.max(BYTES_MOST, cap) }
out.worker, out.list, out.cap, out.now, out.moment = worker, list, cap, now, seconds(now)
find_light(ids)
local light_begins, first_run = {}, name_of_run(1, out.moment)
-- Most jobs are light ones of which nothing else is to be asked: for them, this does what `hand_out` does. A job that
-- BLMOVE moved may also wait.
local is_plain = not (counting or suspecting or policy.batches)
local first = is_plain and 1 or #ids + 1
if is_plain and given > 0 and redis.call('EXISTS', backlog, throttled, ready) > 0 then
  first = given + 1
end
for i = 1, #ids do
  local id, mark, due, from = ids[i], nil, nil, nil
  local text = i >= first and light_jobs[id]
  if type(text) == 'string' and #text <= cap and #text <= out.room then
    mark, due, from = text:match('^%- %-+ (=?)(%S+) ()')
  end
  if due then
    local payload, started, last, begins = text:sub(from), out.started, #out.started, #light_begins
    started[last + 1], started[last + 2], started[last + 3] = id, first_run, due
    started[last + 4], started[last + 5] = payload, due
    light_begins[begins + 1], light_begins[begins + 2] = id, light_text(payload, mark .. due, out.moment, worker)
    out.room = out.room - #payload
  elseif not hand_out(out, id, i <= given) then
    -- The jobs that do not fit in the reply go back to the front of ready. Those in the rows stay in the worker's list.
    for at = #ids, math.max(i, given + 1), -1 do
      redis.call('LPUSH', ready, ids[at])
      redis.call('LREM', list, -1, ids[at])
    end
    hand_over(#ids - math.max(i, given + 1) + 1, now)
    break
  end
end

if #light_begins > 0 then
  redis.call('HSET', light, unpack(light_begins))
end
if out.freed then
  admit(0, now)
end
write_history(now)
local leased, size = redis.call('ZSCORE', leases, worker), redis.call('LLEN', list)
if size > 0 then
  -- A worker that holds nothing sends few heartbeats, and keeps its long lease.
  if not leased then
    redis.pcall('HSET', busy_leases, worker, lease) -- Redis has lost what the worker's heartbeats wrote
  end
  redis.call('ZADD', leases, seconds(ends), worker)
end
local left = redis.call('LLEN', ready) > 0
local waits = ticket ~= '' and not left and size < tonumber(hold)
if waits then
  -- A worker that got nothing keeps its place.
  redis.call('ZADD', idle, type(since) == 'string' and not out.started[1] and since or out.moment, worker)
  if ticket ~= '0' then
    redis.pcall('HSET', seats, worker, string.format('%s %s %.0f', ticket, lease, cap))
  else
    redis.pcall('HDEL', seats, worker)
  end
end
local reply = { out.moment, left and '1' or '0', waits and '1' or '0', leased and '1' or '0', size }
reply[6], reply[7], reply[8] = out.started, out.buried, out.suspected
return reply
