#!lua flags=allow-oom
-- vacate: moving -> gone, because the batch has arrived at its queue. Jobs that could not: moving -> schedule.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   number    of the batch
--        token     of the batch
--        stay      '1' = none of its jobs has arrived, '' = all but those of the rows
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   member    that could not arrive
-- REPLY  how many jobs have left for good; how many are back on the schedule
-- FAILS  none
-- TWICE  the second call finds no such batch, and changes nothing
-- USES   rows, expect, expect_gate, record, moving, moving_batch, lies_elsewhere, is_inline, acquit, note_act,
--        job_fields
--
-- If an id was scheduled here again meanwhile, by a client that writes to Redis itself, its record stays. The key of a
-- unique job stays too, so a program that does not know of the shards yet still finds the id taken.

local number, token, stay, act = unpack(ARGV, 1, 4)

expect('ZCARD', dead, leases)
expect('HLEN', moving)
expect_gate()

local open_number, open_token = moving_batch()
if open_number ~= number or open_token ~= token then
  return { 0, 0 }
end
local stays, found, old, back = {}, redis.call('HGETALL', moving), { moving }, 0
for member in rows(5, 1) do
  stays[member] = true
end

-- Does another job of the id need its record?
local function is_needed(id)
  local run = job_fields(id, 'worker', 'due', 'finished')
  return run.err or run[3] or redis.call('ZSCORE', schedule, id) or lies_elsewhere(id, run[1], run[2])
end

for i = 1, #found, 2 do
  local member, due = found[i], found[i + 1]
  if member ~= '*' and (stay == '1' or stays[member]) then
    redis.call('ZADD', schedule, 'NX', due, member)
    back = back + 1
  elseif member ~= '*' and not is_inline(member) and not is_needed(member) then
    old[#old + 1] = record(member)
    acquit(member)
  end
end
redis.call('DEL', unpack(old))
local moved = #found / 2 - 1 - back
note_act(act, moved)
return { moved, back }
