-- Batches: jobs that are counted together, in the queue that is the home of the batch.
--
-- The record of a member has the field `batch`: `<home>/<batch>/<ordinal>`, and `/<turn>` if it was revived, `turn`
-- times. When it ends, the ending script adds a report to the chores of its own queue, which the keepers of batches
-- carry to the home.
--
-- chores  zset  text of a step -> when it is to be done, Unix seconds. Anybody may do a step at any time, and do it
--               again. `end <home>/<batch> <now> <ordinal><code>[.<turn>] ...` reports ends; the codes are below
--
-- The codes, and the digit that stands for each at the home: o 0 = open again, d 1 = done, x 2 = dead, c 3 = cancelled,
-- e 4 = expired, m 5 = missing, it was never enqueued.

-- The reports of this call. One table with its functions, since a script has at most 200 local names.
-- USES seconds
local member_reports = { lists = {}, code = { done = 'd', dead = 'x', cancelled = 'c', expired = 'e' } }
-- Note that a member has ended, or is open again. `field`: its field `batch`, which may be malformed.
function member_reports.note(field, code)
  local batch, ordinal, turn = field:match('^([%w._:@-]+/[%w._:@-]+)/(%d+)/?(%d*)$')
  if not batch then
    return
  end
  local list = member_reports.lists[batch]
  if not list then
    list = {}
    member_reports.lists[batch] = list
  end
  list[#list + 1] = ordinal .. code .. (turn == '' and '' or '.' .. turn)
end
-- Write what this call has noted. pcall: a key of another type must not keep a job from ending; `evsched doctor` finds
-- it.
function member_reports.write(now)
  for batch, list in pairs(member_reports.lists) do
    local moment = seconds(now)
    local step = 'end ' .. batch .. ' ' .. moment .. ' ' .. table.concat(list, ' ')
    redis.pcall('ZADD', root .. 'chores', moment, step)
  end
end

-- A dead member is revived: its ends from now on replace the last one.
-- USES field_of, member_reports, record
local function reopen_member(id)
  local field = field_of(id, 'batch')
  local member, turn = (field or ''):match('^([%w._:@-]+/[%w._:@-]+/%d+)/?(%d*)$')
  if member then
    -- The home has five bits for it.
    field = member .. '/' .. math.min((tonumber(turn) or 0) + 1, 31)
    redis.call('HSET', record(id), 'batch', field)
    member_reports.note(field, 'o')
  end
end
