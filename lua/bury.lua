#!lua flags=allow-oom
-- bury: processing -> dead, with the reason.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who ran the jobs
-- ROWS   id        of the job
--        attempt   of the run that ends
--        reason    why it is given up
--        reply     '1' = push the outcome to the job's reply list
--        outcome   'dead', or 'expired'
--        how       'killed' = its run ended the process that ran it alone, 'never' = it did not begin, ''
--        trace     the traceback of what the handler raised, '' = none
-- REPLY  ids of the runs that were not this worker's any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
--
-- When the same id was scheduled again meanwhile, it is not dead: it runs again, with all its attempts.

local now, worker = unpack(ARGV, 1, 2)
now = clock(now)
local list = processing(worker)
expect('LLEN', list)
expect('ZCARD', dead)
expect_gate()

local lost = {}
for id, attempt, reason, reply, outcome, how, trace in rows(3, 7) do
  if runs(worker, id, attempt) and redis.call('LPOS', list, id) then
    if how == 'killed' then
      convict(id)
    elseif how == 'never' then
      count_attempts(id, -1)
    end
    local extra = redis.call('HMGET', record(id), 'reply', 'again', 'stop')
    if not extra[3] and (reply == '1' or extra[1]) then
      answer(id, outcome, 'null', reason, 0)
    end
    if extra[3] then
      abort(id, 'cancelled while it ran', RETENTION, reply, now)
    elseif extra[2] or redis.call('ZSCORE', schedule, id) or waiting_place(id) then
      note_end(id, outcome, now)
      redis.call('HSET', record(id), 'reason', reason)
      renew(id, extra[2])
    else
      bury(id, outcome, reason, now)
      if trace ~= '' then
        redis.call('HSET', record(id), 'traceback', trace)
      end
    end
    redis.call('LREM', list, 1, id)
    leave(id)
  else
    lost[#lost + 1] = id
  end
end
admit(0, now)
return lost
