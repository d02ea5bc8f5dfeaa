#!lua flags=allow-oom
-- revive: dead -> schedule, due now, with all its attempts.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        filter    see _match.lua: of the rows, only what matches; '' = none, all rows
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
--        since     number or '': of a call that is sent again because it may have been done: when it was sent first, or
--                  a moment before, Unix seconds. '' = it is sent for the first time, or has a filter
-- ROWS   id        of a job to revive
-- REPLY  ids of the jobs that were revived
-- FAILS  MISSING   without a filter: an id is not dead, or has no record; then none is revived
-- TWICE  with `since`, the second call leaves jobs alone that have died after the first, and its reply has them too.
--        Otherwise it fails with MISSING; with a filter, it finds nothing
-- USES   clock, expect, read_filter, pick_dead, seconds, size_of, record, reuse, row_of, field_of, report_end,
--        note_act, reopen_member, member_reports

local now, filter, act, since = unpack(ARGV, 1, 4)
now = clock(now)

expect('ZCARD', schedule, dead)
local ids, refusal, moved = pick_dead(5, read_filter(filter), true, tonumber(since))
if refusal then
  return refusal
end
for _, id in ipairs(ids) do
  redis.call('ZADD', schedule, seconds(now), id)
  if size_of('HLEN', record(id)) > 0 then -- a key of another type is judged by dispatch
    local asked = field_of(id, 'reply')
    reuse(id)
    if asked then -- for a client that has asked, and does not wait at the reply list yet
      redis.call('HSET', record(id), 'reply', '1')
    end
    local row = row_of(field_of(id, 'ledger'))
    if row then
      redis.call('HSET', record(id), 'renewed', '1')
      report_end(id, row, 'open', '', '')
    end
    reopen_member(id)
  end
  redis.call('ZREM', dead, id)
end
member_reports.write(now)
note_act(act, #ids, ids)
for _, id in ipairs(moved) do
  ids[#ids + 1] = id
end
return ids
