#!lua
-- batch_open: moves nothing. Opens a batch, of which this queue is the home.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        id         of the batch: as a job's id
--        token      of this call: random
--        retention  number: seconds for which it is kept after its end
--        expires    number or '': seconds from now after which it has failed, '' = never
--        parent     of a batch in a batch: `<home>/<batch>/<ordinal>`, '' = none
-- ROWS   field      'by', 'tags', 'complete_on', 'on_done', 'on_failed' or 'on_progress'
--        value      see docs/batches.md
-- REPLY  '1' = it is opened; '' = a call with this token has opened it before
-- FAILS  EXISTS     there is a batch of that id
-- TWICE  the second call, with the same token, changes nothing
-- USES   clock, rows, seconds, expect, fail, refuse, is_id, batches, batch_of, add_chore, write_batch, batch_part

local now, id, token, retention, expires, parent = unpack(ARGV, 1, 6)
now = clock(now)

local ALLOWED = { by = true, tags = true, complete_on = true, on_done = true, on_failed = true, on_progress = true }

if not is_id(id) then
  refuse('id', 'a valid id')
elseif parent ~= '' and not parent:find('^[%w._:@-]+/[%w._:@-]+/%d+$') then
  refuse('parent', 'a valid parent')
end
expect('ZCARD', batches, root .. 'chores')
expect('HLEN', batch_of(id))
local known = redis.call('HGET', batch_of(id), 'token')
if known == token then
  return ''
elseif redis.call('EXISTS', batch_of(id)) == 1 then
  return fail('EXISTS', 'there is a batch ' .. id .. ' already: give this one another id')
end
local fields = { 'token', token, 'created', seconds(now) }
for field, value in rows(7, 2) do
  if not ALLOWED[field] then
    refuse('field', 'a valid field')
  end
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end

local parts = {}
for _, part in ipairs({ 'ends', 'parts', 'ids', 'inner', 'over', 'nodes', 'ripple' }) do
  parts[#parts + 1] = batch_part(part, id)
end
redis.call('DEL', unpack(parts))
redis.call('HSET', batch_of(id), unpack(fields))
write_batch({
  id = id,
  total = 0,
  done = 0,
  dead = 0,
  cancelled = 0,
  expired = 0,
  missing = 0,
  stopped = 0,
  state = 'open',
  retention = retention,
  parent = parent ~= '' and parent,
})
redis.call('ZADD', batches, seconds(now), id)
if expires ~= '' then
  add_chore(seconds(now + tonumber(expires)), 'expire', id)
end
return '1'
