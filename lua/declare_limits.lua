#!lua flags=allow-oom
-- declare_limits: moves nothing itself. Sets the limits that an app declares in its code, removes the ones that it no
-- longer declares, and admits the jobs that the limits now allow.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        owner     the app
--        revision  of the app's declarations
-- ROWS   field     as of `limit`
--        value     a number
--        whole     the limit of the whole queue, of which the value is the part of this shard; '' = it is not divided
-- REPLY  the limits that were set, as field, value, ...; '' = it was removed. False: the app has registered a newer
--        revision, and nothing was written
-- FAILS  none
-- TWICE  the second call finds nothing to set
-- USES   clock, declared_limits, limits, expect, expect_gate, is_older, rows, set_limit, admit_anew
--
-- A limit is written when its declaration is new, has changed or is gone. So a change by hand is kept until then. It is
-- also kept if only the part of this shard has changed, because the queue has another number of shards.

local now, owner, revision = unpack(ARGV, 1, 3)
now = clock(now)

expect('HLEN', declared_limits)
expect_gate(true)
if is_older(owner, revision) then
  return false
end

local declares, changes = {}, {}
local function change(field, value)
  set_limit(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

-- The value, the app and the whole of a declaration. The pattern cannot backtrack, however long the name of an app is.
local function parts_of(text)
  local value, app, rest = (text or ''):match('^(%S+) (%S+)(.*)$')
  return value, app, rest and rest:match('^ (%S+)$') or value
end

-- Is this the declaration of before, divided again, of a limit that was changed by hand?
local function is_kept(field, before, text)
  local was, app, whole = parts_of(before)
  local _, _, declared = parts_of(text)
  return was and app == owner and whole == declared and redis.call('HGET', limits, field) ~= was
end

for field, value, whole in rows(4, 3) do
  local before = redis.call('HGET', declared_limits, field)
  declares[field] = value .. ' ' .. owner .. (whole ~= '' and ' ' .. whole or '')
  if before ~= declares[field] then
    redis.call('HSET', declared_limits, field, declares[field])
    if not is_kept(field, before, declares[field]) then
      change(field, value)
    end
  end
end
local all = redis.call('HGETALL', declared_limits)
for i = 1, #all, 2 do
  local _, app = parts_of(all[i + 1])
  if not declares[all[i]] and app == owner then
    redis.call('HDEL', declared_limits, all[i])
    change(all[i], '')
  end
end
if #changes > 0 then
  admit_anew(now)
end
return changes
