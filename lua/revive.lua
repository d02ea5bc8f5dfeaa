#!lua flags=allow-oom
-- revive: dead -> schedule, due now, with all its attempts.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        filter    see _match.lua: of the rows, only what matches; '' = none, all rows
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- ROWS   id        of a job to revive
-- REPLY  ids of the jobs that were revived
-- FAILS  MISSING   without a filter: an id is not dead, or has no record; then none is revived
-- TWICE  the second call fails with MISSING; with a filter, it finds nothing
-- USES   clock, expect, read_filter, pick_dead, seconds, size_of, record, reuse, row_of, field_of, report_end,
--        note_act

local now, filter, act = unpack(ARGV, 1, 3)
now = clock(now)

expect('ZCARD', schedule, dead)
local ids, refusal = pick_dead(4, read_filter(filter), true)
if refusal then
  return refusal
end
for _, id in ipairs(ids) do
  redis.call('ZADD', schedule, seconds(now), id)
  if size_of('HLEN', record(id)) > 0 then -- a key of another type is judged by dispatch
    reuse(id)
    local row = row_of(field_of(id, 'ledger'))
    if row then
      redis.call('HSET', record(id), 'renewed', '1')
      report_end(id, row, 'open', '', '')
    end
  end
  redis.call('ZREM', dead, id)
end
note_act(act, #ids, ids)
return ids
