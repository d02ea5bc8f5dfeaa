#!lua flags=allow-oom
-- settle: moves nothing: the ledger has the ends of jobs. Their reports go, and the retention of their records begins.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   group      the consumer group that read the reports
-- ROWS   report     id of the report in the stream
--        id         of the job
--        row        the number of its row
--        retention  number or '': seconds that the record is kept, '0' = not at all, '' = as it is: the job is dead
-- REPLY  how many reports were deleted
-- FAILS  none
-- TWICE  the second call lets the retention begin again, and deletes nothing
-- USES   rows, ledger_ends, record, milliseconds, refuse, job_fields
--
-- A record that is the next job's by now, or the next run's, is left alone.

local group = unpack(ARGV, 1, 1)

-- The parts of an entry's id have 64 bits.
local function fits(part)
  return #part < 20 or (#part == 20 and part <= '18446744073709551615')
end

local reports = {}
for entry in rows(2, 4) do
  local time, number = entry:match('^(%d+)%-(%d+)$')
  if not time or not fits(time) or not fits(number) then
    refuse('report', "the id of a stream's entry")
  end
  reports[#reports + 1] = entry
end
if #reports == 0 then
  return 0
end
-- First, since XACK refuses a key of the wrong type.
redis.call('XACK', ledger_ends, group, unpack(reports))
for _, id, row, retention in rows(2, 4) do
  local run = job_fields(id, 'ledger', 'finished')
  local length = tonumber(retention)
  if length and run[1] == row and run[2] and not redis.call('ZSCORE', dead, id) then
    if length > 0 then
      redis.call('PEXPIRE', record(id), milliseconds(length))
    else
      redis.call('DEL', record(id))
    end
  end
end
return redis.call('XDEL', ledger_ends, unpack(reports))
