#!lua flags=allow-oom
-- drop: dead -> gone, with the record.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   filter    see _match.lua: of the rows, only what matches; '' = none, all rows
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
--        since     number or '': as in `revive`
-- ROWS   id        of a job to drop
-- REPLY  ids of the jobs that were dropped
-- FAILS  MISSING   without a filter: an id is not dead; then none is dropped
-- TWICE  as of `revive`
-- USES   clock, expect, read_filter, pick_dead, record, unique, row_of, field_of, report_gone, note_act

local filter, act, since = unpack(ARGV, 1, 3)

expect('ZCARD', schedule, dead)
local ids, refusal, moved = pick_dead(4, read_filter(filter), false, tonumber(since))
if refusal then
  return refusal
end
for _, id in ipairs(ids) do
  redis.call('ZREM', dead, id)
  redis.call('DEL', unique(id))
  if not redis.call('ZSCORE', schedule, id) then
    local row = row_of(field_of(id, 'ledger'))
    redis.call('DEL', record(id))
    if row then
      report_gone(id, row, 'dropped', 'dropped from the dead-letter set', clock(''))
    end
  end
end
note_act(act, #ids, ids)
for _, id in ipairs(moved) do
  ids[#ids + 1] = id
end
return ids
