-- Batches: jobs that are counted together, in the queue that is the home of the batch.
--
-- The record of a member has the field `batch`: `<home>/<batch>/<ordinal>`, and `/<turn>` if it was revived, `turn`
-- times. When it ends, the ending script adds a report to the chores of its own queue, which the keepers of batches
-- carry to the home.
--
-- chores  zset  text of a step -> when it is to be done, Unix seconds. Anybody may do a step at any time, and do it
--               again:
--
-- end <home>/<batch> <now> <ordinal><code>[.<turn>] ...   report ends of jobs of this queue to their batch
-- and of batches whose home is this queue:
-- call <batch> <outcome> <number> <counts>                schedule the job of a callback
-- recall <batch> <outcome> <number> <counts>              the same once more, if it went to another server of a cluster
-- settle <batch> <first> <last> <token>                   look for jobs that were never enqueued; '-' = no token
-- cancel <batch> <first> <last>                           cancel the jobs that have not ended
-- expire <batch>                                          the batch has taken too long
-- hold <batch> <stamp> <first>                            pause or resume its jobs in their queues, see batch_pause;
--                                                         from this of its parts on
-- resume <batch> <stamp>                                  the end of its pause
-- forget <batch>                                          its retention is over
-- start, ripple and shed                                  of graphs: see _graphs.lua
--
-- The codes, and the number of each at the home: o 0 = open, again; d 1 = done; x 2 = dead; c 3 = cancelled; e 4 =
-- expired; m 5 = missing, it was never enqueued. The home alone gives 6 = stopped and 7 = it waits, to nodes of graphs.

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

-- The home of a batch.
--
-- batches           zset    id -> when it was opened, Unix seconds
-- batch:<id>        hash    see BATCH_FIELDS, and docs/batches.md
-- batch_ends:<id>   string  for each ordinal a byte: the number of its code, and 8 for each turn
-- batch_parts:<id>  list    `<first> <count> <queue>`: in which queues the ordinals are, in order
-- batch_ids:<id>    hash    ordinal -> id, for jobs whose id is not `<batch>.<ordinal>`; `/<batch>` is a batch
-- batch_inner:<id>  list    `<ordinal> <queue> <batch>`: the batches among its members
-- batch_over:<id>   list    the state in which it has ended, for clients that wait
-- batch_sums        hash    for metrics: `live`, how many batches have not ended; `jobs`, how many of their jobs have
--                           not; and by state, how many have ended

local batches = root .. 'batches'

local function batch_of(id)
  return root .. 'batch:' .. id
end

-- `part`: ends, parts, ids, inner or over; nodes or ripple of a graph.
local function batch_part(part, id)
  return root .. 'batch_' .. part .. ':' .. id
end

-- The fields that scripts read, the counts first. `adding`: how many reservations are not confirmed; `round`: how often
-- the batch has ended; `tenth`: of the progress that was reported last; `nodes`: how many its graph has; `rippled`: how
-- often a script has left work on them; `asked`: those for whose ends clients wait; `paused`: since when it is paused;
-- `stamp`: of its last pause or resume, which is higher each time.
local BATCH_FIELDS = {
  'total',
  'done',
  'dead',
  'cancelled',
  'expired',
  'missing',
  'stopped',
  'adding',
  'round',
  'tenth',
  'nodes',
  'rippled',
  'state',
  'closed',
  'stop',
  'complete_on',
  'parent',
  'retention',
  'asked',
  'paused',
  'stamp',
}
local BATCH_COUNTS = 12
-- The field that counts the ends with a code, by its number.
local COUNT_OF = { 'done', 'dead', 'cancelled', 'expired', 'missing', 'stopped' }

local function how_many_open(batch)
  local ended = batch.done + batch.dead + batch.cancelled + batch.expired + batch.missing + batch.stopped
  return batch.total - ended
end

-- The part of a batch in `batch_sums`.
-- USES how_many_open
local function sum_of_batch(batch)
  local lasts = batch.state == 'open' or batch.state == 'running'
  return { live = lasts and 1 or 0, jobs = lasts and how_many_open(batch) or 0 }
end

-- A batch by its id; nil when there is none, or a key of it is of another type.
-- USES batch_of, BATCH_FIELDS, BATCH_COUNTS, batch_part, sum_of_batch
local function read_batch(id)
  local found = redis.pcall('HMGET', batch_of(id), unpack(BATCH_FIELDS))
  if type(redis.pcall('STRLEN', batch_part('ends', id))) ~= 'number' then
    return nil
  end
  local batch = { id = id, changes = {}, released = {}, starts = {} }
  for i, name in ipairs(BATCH_FIELDS) do
    batch[name] = found[i]
    if i <= BATCH_COUNTS then
      batch[name] = tonumber(found[i] or nil) or 0
    end
  end
  if batch.nodes > 0 then
    local kinds = { redis.pcall('HLEN', batch_part('nodes', id)), redis.pcall('LLEN', batch_part('ripple', id)) }
    if type(kinds[1]) ~= 'number' or type(kinds[2]) ~= 'number' then
      return nil
    end
  end
  batch.summed = batch.state and sum_of_batch(batch)
  return batch.state and batch or nil
end

-- USES batch_of, BATCH_FIELDS, sum_of_batch
local function write_batch(batch)
  local fields = {}
  for _, name in ipairs(BATCH_FIELDS) do
    if batch[name] then
      fields[#fields + 1] = name
      fields[#fields + 1] = batch[name]
    end
  end
  redis.call('HSET', batch_of(batch.id), unpack(fields))
  local was, is = batch.summed or {}, sum_of_batch(batch)
  for name, count in pairs(is) do
    if count ~= (was[name] or 0) then
      redis.pcall('HINCRBY', root .. 'batch_sums', name, count - (was[name] or 0))
    end
  end
  batch.summed = is
end

-- The refusal of a batch that is not there.
-- USES fail
local function no_batch(id)
  return fail('MISSING', id .. ' is not a batch of queue ' .. string.match(root, '{(.*)}'))
end

local function add_chore(at, ...)
  redis.call('ZADD', root .. 'chores', at, table.concat({ ... }, ' '))
end

-- The ordinals from `first` on are in a queue.
-- USES batch_part
local function add_part(id, first, count, queue)
  local parts = batch_part('parts', id)
  local last = redis.call('LINDEX', parts, -1) or ''
  local from, many, same = last:match('^(%d+) (%d+) (.*)$')
  if same == queue then
    redis.call('LSET', parts, -1, table.concat({ from, many + count, queue }, ' '))
  else
    redis.call('RPUSH', parts, table.concat({ first, count, queue }, ' '))
  end
end

-- Note a member that is a batch: one whose id has a slash before it. pcall: a key of another type must not keep it from
-- being added; `evsched doctor` finds it.
-- USES batch_part
local function note_inner(id, ordinal, job, queue)
  if job:byte() == 47 then -- a slash
    redis.pcall('RPUSH', batch_part('inner', id), table.concat({ ordinal, queue, job:sub(2) }, ' '))
  end
end

-- Give a batch that is paused or resumed its next stamp. A keeper applies that in the queues of its jobs, after a
-- number of seconds. The clock is in it, so that it is also higher if Redis has lost the last one.
-- USES add_chore, seconds
local function stamp_batch(batch, now, after)
  local last = tonumber(batch.stamp or nil) or 0
  redis.call('ZREM', root .. 'chores', table.concat({ 'resume', batch.id, batch.stamp or '' }, ' '))
  redis.call('ZREM', root .. 'chores', table.concat({ 'hold', batch.id, batch.stamp or '', 0 }, ' '))
  batch.stamp = string.format('%.0f', math.max(last + 1, math.floor(now * 1000)))
  add_chore(seconds(now + after), 'hold', batch.id, batch.stamp, 0)
end

-- End the pause of a batch, if it is paused.
-- USES batch_of, stamp_batch
local function end_batch_pause(batch, now, after)
  if batch.paused then
    redis.call('HDEL', batch_of(batch.id), 'paused', 'paused_until', 'paused_why', 'paused_itself', 'paused_above')
    batch.paused = false
    stamp_batch(batch, now, after)
  end
end

-- Apply reports to a batch: a byte for each ordinal from `first` on, 0 = none. They may come in any order, and again:
-- one is newer if its turn is higher, or if the turn has no end yet. It is one, too, if the job was thought missing.
-- USES COUNT_OF, batch_part, note_change
local function apply_ends(batch, first, bytes)
  local key, last = batch_part('ends', batch.id), math.min(first + #bytes, batch.total) - 1
  if last < first then
    return
  end
  local old, new, changed = redis.call('GETRANGE', key, first, last), {}, false
  for i = 1, last - first + 1 do
    local known, said = old:byte(i) or 0, bytes:byte(i)
    local code, turn = known % 8, math.floor(known / 8)
    local newer = math.floor(said / 8) - turn
    local is_end = said % 8 > 0 and (code == 0 or (code == 5 and said % 8 ~= 5))
    if said ~= 0 and said % 8 < 6 and (newer > 0 or (newer == 0 and is_end)) then
      if first + i <= batch.nodes then
        note_change(batch, first + i - 1, code, said % 8)
      end
      local was, is = COUNT_OF[code], COUNT_OF[said % 8]
      if was then
        batch[was] = batch[was] - 1
      end
      if is then
        batch[is] = batch[is] + 1
      end
      -- The report that the job is open again may have been overtaken by that of its next end.
      batch.is_turned = batch.is_turned or newer > 0
      known, changed = said, true
    end
    new[i] = string.char(known)
  end
  if changed then
    redis.call('SETRANGE', key, first, table.concat(new))
  end
end

-- Confirm a reservation: its jobs are enqueued, or known to be missing. Nothing if it is confirmed already.
-- USES batch_of, add_chore, seconds
local function confirm(batch, token, now)
  local field = 'adding:' .. token
  local first, last = (redis.call('HGET', batch_of(batch.id), field) or ''):match('^(%d+) (%d+)$')
  if not first then
    return
  end
  redis.call('HDEL', batch_of(batch.id), field)
  redis.call('ZREM', root .. 'chores', table.concat({ 'settle', batch.id, first, last, token }, ' '))
  batch.adding = math.max(0, batch.adding - 1)
  if batch.stop then
    add_chore(seconds(now), 'cancel', batch.id, first, last) -- they came after the others were cancelled
  end
end

-- Report a batch to the batch that it is a member of.
-- USES member_reports
local function report_batch(batch, code)
  if batch.parent then
    member_reports.note(batch.parent .. '/' .. math.min(batch.round, 31), code)
  end
end

-- Have the job of a callback scheduled, if there is one. `number`: with the outcome, no other call has it.
-- USES batch_of, add_chore, seconds
local function call_back(batch, outcome, number, now)
  if redis.call('HEXISTS', batch_of(batch.id), 'on_' .. outcome) == 1 then
    local ends = { batch.done, batch.dead, batch.cancelled, batch.expired, batch.stopped }
    add_chore(seconds(now), 'call', batch.id, outcome, number, batch.total - batch.missing, table.concat(ends, ' '))
  end
end

-- A batch that has failed is open again, since a job of it was revived.
-- USES batch_of, report_batch, batch_part
local function reopen_batch(batch)
  batch.state, batch.tenth = 'running', 10
  redis.call('HDEL', batch_of(batch.id), 'finished')
  redis.call('DEL', batch_part('over', batch.id))
  redis.call('ZREM', root .. 'chores', 'forget ' .. batch.id)
  report_batch(batch, 'o')
end

-- USES batch_of, report_batch, call_back, add_chore, seconds, batch_part, end_batch_pause
local function end_batch(batch, now)
  local failed = batch.dead + batch.cancelled + batch.expired + batch.stopped > 0 and batch.complete_on ~= 'all'
  local state = batch.stop or (failed and 'failed' or 'done')
  if state == 'expired' then
    state = 'failed'
  end
  batch.state = state
  if state == 'failed' and redis.call('HGET', batch_of(batch.id), 'paused_above') == '1' then
    redis.call('HDEL', batch_of(batch.id), 'paused_until', 'paused_why', 'paused_itself') -- a job may be revived
  else
    end_batch_pause(batch, now, 0)
  end
  report_batch(batch, ({ done = 'd', failed = 'x', cancelled = 'c' })[state])
  batch.round = batch.round + 1
  redis.pcall('HINCRBY', root .. 'batch_sums', state, 1)
  call_back(batch, state, batch.round, now)
  redis.call('HSET', batch_of(batch.id), 'finished', seconds(now))
  redis.call('ZREM', root .. 'chores', 'expire ' .. batch.id)
  add_chore(seconds(now + (tonumber(batch.retention) or 0)), 'forget', batch.id)
  redis.call('DEL', batch_part('over', batch.id))
  redis.call('RPUSH', batch_part('over', batch.id), state)
  if batch.nodes > 0 and not batch.parent and state ~= 'failed' then
    add_chore(seconds(now), 'shed', batch.id, 0) -- nothing needs their results any more
  end
end

-- Decide what follows from the counts of a batch, and write it.
-- USES how_many_open, reopen_batch, end_batch, call_back, write_batch, member_reports, work_off, answer_asked
local function decide(batch, now)
  local is_rippling = batch.nodes > 0 and work_off(batch, now)
  if batch.asked then
    answer_asked(batch)
  end
  local left = how_many_open(batch)
  if batch.state == 'failed' and (left > 0 or batch.is_turned) then
    reopen_batch(batch)
  end
  local ended = batch.state == 'done' or batch.state == 'cancelled' or batch.state == 'failed'
  if batch.state == 'failed' and batch.stop == 'cancelled' then
    ended = false
  end
  local members = batch.total - batch.missing
  local tenth = batch.closed and members > 0 and math.floor(10 * (members - left) / members) or 0
  if batch.closed and batch.adding == 0 and left == 0 and not ended and not is_rippling then
    end_batch(batch, now)
  elseif not ended and tenth > batch.tenth then
    batch.tenth = tenth
    call_back(batch, 'progress', tenth, now)
  end
  write_batch(batch)
  member_reports.write(now)
end
