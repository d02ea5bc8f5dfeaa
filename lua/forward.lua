#!lua
-- forward: processing -> finished, and a message -> a stream, a list or a channel: both or neither.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        worker     who ran the jobs
--        hook       the task that gets a job for each that ends here, '' = none
--        task       the task of the jobs, if there is a hook
--        plain      '1' = JSON has all ids as they are
-- ROWS   id         of the job
--        run        that ends, as `start` named it
--        result     JSON
--        retention  number: seconds that the record is kept, '0' = not at all
--        reply      '1' = push the outcome to the job's reply list
--        label      JSON, a list of its task and its tags, for the history
--        into       'stream', 'left' or 'right' = that end of a list, 'channel'
--        name       of the stream, list or channel
--        most       count or '': about how many entries the stream keeps, '' = all
--        message    the text; an entry of a stream has the job's id in a field besides it
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
--        ids of the runs whose message Redis refused, each followed by Redis's error: nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost, and sends nothing
-- USES   clock, completion, end_runs
--
-- A run that was to stop sends nothing, and ends as cancelled.
--
-- Redis may refuse a message: the key has another type, or the user lacks the right to it. Then the run stays with its
-- worker, which ends it in another way. While Redis's memory is full, the script is refused as a whole: a message needs
-- memory that the end of its job does not free. The worker then ends the runs with `snooze`.
--
-- The name is not among KEYS, and may be in any cluster slot: a message and its job are written together because there
-- is one Redis.

local now, worker, hook, task, plain = unpack(ARGV, 1, 5)
now = clock(now)
local complete = completion(now, hook, task, plain)

local function send(id, into, name, most, message)
  if into == 'channel' then
    return redis.pcall('PUBLISH', name, message)
  elseif into == 'left' then
    return redis.pcall('LPUSH', name, message)
  elseif into == 'right' then
    return redis.pcall('RPUSH', name, message)
  elseif most == '' then
    return redis.pcall('XADD', name, '*', 'id', id, 'message', message)
  end
  return redis.pcall('XADD', name, 'MAXLEN', '~', most, '*', 'id', id, 'message', message)
end

local function finish(id, run, scheduled, result, retention, reply, label, into, name, most, message)
  local sent = not run[5] and send(id, into, name, most, message)
  if type(sent) == 'table' then
    return sent.err
  end
  complete(id, run, scheduled, result, retention, reply, label)
end
return { end_runs(6, 10, worker, now, finish) }
