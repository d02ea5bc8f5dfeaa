-- How a worker gets jobs of ready: the checks and the writes when a job starts.

-- Start a job that is in the worker's list, or end it there if it cannot run. Returns false if there is no room for its
-- payload; then nothing has happened. `fetched`: BLMOVE moved it. `out` says who gets the jobs, `worker` and `list`;
-- `cap`, the bytes that a payload may have; `room`, the bytes for all that follow; `now`, and the same as text,
-- `moment`. It also collects the reply: `started`, `buried` and `suspected`, as `start` returns them; and `freed`: the
-- gate may let other jobs pass.
-- USES payload_size, moment_of, holds, worker_of, NOT_A_HASH, keep_misnamed, TOO_LONG, leave, with_failure, bury,
--      abort, remove_waiting, uncount_run, field_of, policy, attempt_of, batch_holds, return_to_backlog, counting,
--      enter, name_of_run, suspicion_of, job_fields, record_key, light_of, light_text, throttled, light, recorded
local function hand_out(out, id, fetched)
  local worker, list, now, moment = out.worker, out.list, out.now, out.moment
  local run = job_fields(id, 'payload', 'attempt', 'due', 'worker', 'finished', 'stop', 'planned')
  local payload, attempt, due, holder, finished, stop, planned = unpack(run, 1, 7)
  local size = not run.err and payload_size(id, payload)
  if not size or size == 0 or size > out.cap then
    payload = nil -- it may have been replaced since dispatch checked it
  elseif size > out.room then
    return false
  else
    out.room = out.room - size
    payload = size > #payload and redis.call('HGET', record_key(id), 'payload') or payload
    due = moment_of(due)
  end
  local elsewhere = holder and holder ~= worker and holds(worker_of(holder), id)
  if not payload then
    local reason, kept = 'its record was gone when a worker took it: DEL a record only after a ZREM of its id', id
    if not size then
      reason, kept = 'the key of its record is ' .. NOT_A_HASH, keep_misnamed(id)
    elseif size > out.cap then
      reason = TOO_LONG:format(size, out.cap) .. ', since it was due: do not HSET it then'
    end
    redis.call('LREM', list, 1, id)
    leave(id)
    reason = with_failure(kept, reason)
    bury(kept, 'dead', reason, now)
    local at = #out.buried
    out.buried[at + 1], out.buried[at + 2] = kept, reason
  elseif not due and redis.call('ZSCORE', schedule, id) then
    -- The job was replaced between BLMOVE and start, and the new one waits for its own time. Or it was in two
    -- lists, and another attempt follows the run from the other one.
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif stop and not finished then
    if holder == worker and not field_of(id, 'begun') then
      uncount_run(id) -- the reply that handed it out was lost
    end
    abort(id, 'cancelled before it ran', RETENTION, '', now)
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif elsewhere then
    redis.call('LREM', list, -1, id)
  elseif finished then
    redis.call('LREM', list, 1, id)
    leave(id)
  elseif policy.batches and (holder ~= worker or attempt_of(attempt) == 0) and batch_holds.has(id) then
    -- Its batch was paused after it passed the gate.
    redis.call('LREM', list, 1, id)
    leave(id)
    out.freed = true
    remove_waiting(id) -- it may also have waited there
    return_to_backlog({ id })
  else
    if fetched and holder ~= worker and redis.call('EXISTS', backlog, throttled, ready) > 0 and remove_waiting(id) then
      out.freed = true -- it also waited there
    end
    if counting then
      -- It is counted already, unless it was in two lists and the run in the other has ended.
      enter(id)
    end
    local attempts, since = attempt_of(attempt), moment
    if holder ~= worker or attempts == 0 then -- 0: a client wrote this worker's name
      attempts = attempts + 1
      local job = light_of(id)
      if job then
        local mark = recorded[id] and '=' or ''
        redis.call('HSET', light, id, light_text(job.payload, mark .. job.due, moment, worker))
      else
        redis.call('HSET', record_key(id), 'attempt', attempts, 'worker', worker, 'started', moment)
      end
    else
      since = moment_of(field_of(id, 'started')) or ''
    end
    local started, at = out.started, #out.started
    planned = planned and moment_of(planned)
    started[at + 1], started[at + 2] = id, name_of_run(attempts, since)
    started[at + 3], started[at + 4] = due or moment, payload
    started[at + 5] = planned or due or moment
    local deaths, doubts, counted = suspicion_of(id)
    if deaths + counted > 0 then
      local suspected, last = out.suspected, #out.suspected
      suspected[last + 1], suspected[last + 2], suspected[last + 3], suspected[last + 4] = id, deaths, doubts, counted
    end
  end
  return true
end
