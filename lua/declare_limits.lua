#!lua flags=allow-oom
-- declare_limits: moves nothing itself. Sets the limits that an app declares in its code, removes those that it no
-- longer declares, and admits the jobs that the limits now allow.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        owner     the app
--        revision  of what the app declares
-- ROWS   field     as of `limit`
--        value     a number
-- REPLY  what was set, as field, value, ...; '' = the limit was removed. False: the app has registered a newer
--        revision, and nothing was written
-- FAILS  none
-- TWICE  the second call finds nothing to set
-- USES   clock, declared_limits, expect, expect_gate, is_older, rows, set_limit, admit_anew
--
-- A limit is written when its declaration is new, has changed or is gone. So a change by hand is kept until then.

local now, owner, revision = unpack(ARGV, 1, 3)
now = clock(now)

expect('HLEN', declared_limits)
expect_gate()
if is_older(owner, revision) then
  return false
end

local declares, changes = {}, {}
local function change(field, value)
  set_limit(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end
for field, value in rows(4, 2) do
  declares[field] = value .. ' ' .. owner
  if redis.call('HGET', declared_limits, field) ~= declares[field] then
    redis.call('HSET', declared_limits, field, declares[field])
    change(field, value)
  end
end
local all = redis.call('HGETALL', declared_limits)
for i = 1, #all, 2 do
  if not declares[all[i]] and all[i + 1]:match(' (.*)$') == owner then
    redis.call('HDEL', declared_limits, all[i])
    change(all[i], '')
  end
end
if #changes > 0 then
  admit_anew(now)
end
return changes
