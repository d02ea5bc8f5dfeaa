#!lua flags=allow-oom
-- drop: dead -> gone, with the record.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   before    only what died up to then, Unix seconds; '' = no bound
--        limit     how many at most, under 1000
-- ROWS   id        what is dropped; none = the oldest
-- REPLY  ids of what was dropped
-- FAILS  MISSING   an id is not dead; then none is dropped
-- TWICE  the second call fails with MISSING, or drops the next oldest

local before, limit = unpack(ARGV, 1, 2)

-- This read also refuses a key of the wrong type before anything is written.
redis.call('ZCARD', schedule)
local ids = {}
for id in rows(3, 1) do
  if not redis.call('ZSCORE', dead, id) then
    return fail('MISSING', id .. ' is not dead')
  end
  ids[#ids + 1] = id
end
if #ids == 0 then
  ids = redis.call('ZRANGE', dead, '-inf', before == '' and '+inf' or before, 'BYSCORE', 'LIMIT', 0, limit)
end
for _, id in ipairs(ids) do
  redis.call('ZREM', dead, id)
  if not redis.call('ZSCORE', schedule, id) then
    redis.call('DEL', record(id))
  end
end
return ids
