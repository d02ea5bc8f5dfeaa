#!lua flags=allow-oom
-- batch_hold: ready -> backlog. Holds the jobs of batches in this queue, or lets them go on.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        latest    number: seconds, a moment; the call changes nothing after it
-- ROWS   batch     `<home>/<batch>`
--        stamp     count: of its pause or resume; one that is lower than the last one changes nothing
--        held      '1' = it is paused, '' = it is not, '-' = it is forgotten
-- REPLY  '1', or '' if it came after that
-- FAILS  none
-- TWICE  the second call changes nothing
-- USES   clock, expect, expect_gate, rows, refuse, batch_holds, limits, throttled, read_policy, admit_anew,
--        return_to_backlog
--
-- The stamps are those of batch_pause. A batch is forgotten later than any call about it may come, so none leaves
-- anything behind. The jobs that were ready go to the front of the backlog, in their order, and from there to the
-- backlog of the group of the batch, as jobs do that fall due. Those that a worker has fetched follow when it starts
-- them. O(n) in ready.

local now, latest = unpack(ARGV, 1, 2)
now = clock(now)

-- How many jobs of ready are looked at. There are more only after a flood, and `start` holds those.
local READY_MOST = 1000

expect_gate(true)
expect('HLEN', batch_holds.key)
for batch, stamp, held in rows(3, 3) do
  if not batch:find('^[%w._:@-]+/[%w._:@-]+$') or #batch > 400 then
    refuse('batch', 'the address of a batch')
  elseif held ~= '1' and held ~= '' and held ~= '-' then
    refuse('held', "'1', '' or '-'")
  elseif #stamp > 15 then
    refuse('stamp', 'a valid count')
  end
end
if now > tonumber(latest) then
  return ''
end

local more, changed, fresh = 0, false, {}
for batch, stamp, held in rows(3, 3) do
  local last = tonumber((redis.call('HGET', batch_holds.key, batch) or ''):match('^%d+')) or 0
  local group = batch_holds.group_of(batch)
  if tonumber(stamp) >= last then
    if held == '-' then
      redis.call('HDEL', batch_holds.key, batch)
    else
      redis.call('HSET', batch_holds.key, batch, stamp .. ' ' .. held)
    end
    local fields
    if held == '1' then
      fields = redis.call('HSET', limits, 'concurrency:' .. group, 0)
      fresh[group] = fields == 1 or nil
    else
      fields = -redis.call('HDEL', limits, 'concurrency:' .. group)
      redis.call('ZADD', throttled, 'XX', 0, group)
    end
    more, changed = more + fields, changed or fields ~= 0
  end
end
if changed and redis.call('HINCRBY', limits, 'batches', more) <= 0 then
  redis.call('HDEL', limits, 'batches')
end
read_policy()
if next(fresh) then
  local back = {}
  for _, id in ipairs(redis.call('LRANGE', ready, 0, READY_MOST - 1)) do
    local group = batch_holds.group(id)
    if group and fresh[group] then
      back[#back + 1] = id
    end
  end
  return_to_backlog(back)
  for _, id in ipairs(back) do
    redis.call('LREM', ready, 1, id)
  end
end
if changed then
  admit_anew(now)
end
return '1'
