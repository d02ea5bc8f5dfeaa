#!lua flags=allow-oom
-- withdraw: schedule, backlog or ready -> gone, for jobs that have ended, as their rows in the ledger say. A worker
-- that runs one is asked to stop it.
--
-- KEYS   root  prefix of the queue's keys
-- ARGV   now   seconds, '' = Redis's clock
-- ROWS   id    of the job
--        row   the number of its row, which has ended
-- REPLY  how many were withdrawn or are asked to stop
-- FAILS  none
-- TWICE  the second call finds nothing, or asks the workers again
-- USES   clock, rows, record, acquit, expect, expect_gate, remove_waiting, holder_of, admit, fields_of, row_of,
--        is_earlier
--
-- Redis has such jobs when it was given an older copy of its data. No client waits for them: their ends are known. A
-- job is left as it is if it is not of this row or an earlier one, if it has ended here too, or if it was replaced or
-- revived (`renewed`): a client or an operator wants it, and may have done so after the data was copied. A run is left
-- alone if the next job of its id waits. The end of a run that is stopped is not reported. O(workers) a job.

local now = unpack(ARGV, 1, 1)
now = clock(now)

expect('ZCARD', schedule, dead, leases)
expect_gate()

local count = 0
for id, row in rows(2, 2) do
  local key = record(id)
  local run = fields_of(key, 'worker', 'ledger', 'finished', 'renewed', 'again')
  local ours = row_of(run[2])
  if ours and (ours == row or is_earlier(ours, row)) and not run[3] and not run[4] then
    local holder = holder_of(id, run[1])
    if not holder then
      local removed = redis.call('ZREM', schedule, id)
      if remove_waiting(id) or removed == 1 then
        redis.call('DEL', key)
        acquit(id)
        count = count + 1
      end
    elseif not run[5] and not redis.call('ZSCORE', schedule, id) then
      redis.call('HDEL', key, 'ledger')
      redis.call('HSET', key, 'stop', '1')
      redis.call('PUBLISH', root .. 'control:' .. holder, id)
      count = count + 1
    end
  end
end
admit(0, now)
return count
