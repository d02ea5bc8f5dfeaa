#!lua flags=allow-oom
-- register: moves nothing. Gives the declarations in an app's code a revision. From then on, older revisions change
-- nothing.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        owner     the app
--        content   digest of all that it declares in this queue
--        given     number or '': its revision, '' = the one that this content has, or else a new one
--        known     number or '': the revision that the caller had before Redis lost its data, '' = it had none
-- REPLY  the revision; the newest revision of the app; the names of the recurrences that it declares so far
-- FAILS  none
-- TWICE  the second call finds the same
-- USES   clock, expect, declared_by, revisions_of, newest_of, apps
--
-- A new content gets a revision that is higher than all that are known: the time minus 1e11. Being the time, it is also
-- higher than numbers that Redis had before it lost its data. Being negative, it is lower than any that an app gives,
-- which are 1 or more. After a given one, it lies between that and the next whole number, which the app may give next.

local now, owner, content, given, known = unpack(ARGV, 1, 5)
now = clock(now)
local declared, revisions = declared_by(owner), revisions_of(owner)

-- How many contents are remembered, the newest ones: about 100 bytes each. One that is older counts as new.
local CONTENTS_MOST = 100

expect('ZCARD', schedule, recurrences, revisions)
expect('SCARD', declared)
local revision = tonumber(given)
if not revision then
  local seen = tonumber(redis.call('ZSCORE', revisions, content) or '') or -math.huge
  revision = math.max(seen, tonumber(known) or -math.huge)
  if revision == -math.huge then
    local newest = newest_of(owner)
    local between = newest > 0 and newest + (math.floor(newest) + 1 - newest) / 2 or newest + 1
    revision = math.max(math.floor(now) - 1e11, between)
  end
end
redis.call('ZADD', revisions, 'GT', string.format('%.17g', revision), content)
redis.call('ZREMRANGEBYRANK', revisions, 0, -1 - CONTENTS_MOST)
redis.pcall('SADD', apps, owner) -- pcall: the key may be of another type
return { string.format('%.17g', revision), string.format('%.17g', newest_of(owner)), redis.call('SMEMBERS', declared) }
