#!lua flags=allow-oom
-- drop: dead -> gone, with the record.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   filter    see _match.lua: of the rows, only what matches; '' = none, all rows
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   id        of a job to drop
-- REPLY  ids of the jobs that were dropped
-- FAILS  MISSING   without a filter: an id is not dead; then none is dropped
-- TWICE  the second call fails with MISSING; with a filter, it finds nothing
-- USES   clock, expect, read_filter, pick_dead, record, unique, row_of, field_of, report_gone, note_act

local filter, act = unpack(ARGV, 1, 2)

expect('ZCARD', schedule, dead)
local ids, refusal = pick_dead(3, read_filter(filter), false)
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
return ids
