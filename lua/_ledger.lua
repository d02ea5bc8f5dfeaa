-- The ledger: a table in a database, each row of which stands for one job (docs/ledger.md).
--
-- The record of such a job has the number of its row in the field `ledger`. When the job ends, the ending script adds a
-- report to the stream `ends`, from which the relays of the ledger write the row's end. Until `settle` says that they
-- have done so, the record stays: by it, a relay that schedules the row once more sees that its job has already run.
--
-- The number of a row is another one each time that the row is used for a job, and a later one is higher. A row is used
-- again only after its job has ended. So the number in a record says which of two jobs of an id is the current one. If
-- a row's job must wait for a run of an earlier use, its number is in the field `next_ledger` meanwhile.
--
-- A job of a row that a client has replaced, or that was revived, has the field `renewed`: `withdraw` leaves it alone.
--
-- ends  stream  id, row, outcome, reason, and retention: seconds that the record is kept from then on, '0' = not at all

local ledger_ends = root .. 'ends'

-- The number of a row, from the field `ledger`; nil when the job is not the ledger's.
local function row_of(text)
  return text and #text <= 18 and text:match('^%d+$') or nil
end

-- Is the first number of a row lower?
local function is_earlier(row, other)
  return #row < #other or (#row == #other and row < other)
end

-- Report the end of a job, or with the outcome 'open' that it waits again.
-- pcall: a stream that is a key of another type must not keep a job from ending; `evsched doctor` finds it.
-- USES ledger_ends
local function report_end(id, row, outcome, reason, retention)
  local fields = { 'id', id, 'row', row, 'outcome', outcome, 'reason', reason or '', 'retention', retention }
  redis.pcall('XADD', ledger_ends, '*', unpack(fields))
end

-- Report the end of a job whose record has just been deleted, and keep a short one in its place until `settle`.
-- USES record, seconds, report_end
local function report_gone(id, row, outcome, reason, now)
  redis.call('HSET', record(id), 'ledger', row, 'outcome', outcome, 'finished', seconds(now))
  report_end(id, row, outcome, reason, '0')
end
