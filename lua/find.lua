#!lua flags=no-writes,allow-cross-slot-keys
-- find: moves nothing. The jobs of a place that match a filter, a slice of the place at a time, in some queues.
--
-- KEYS   root      prefix of the keys of one of the queues
-- ARGV   place     schedule, backlog, backlog:<group>, ready, processing:<worker>, finished or dead
--        filter    see _match.lua; {} = every job
--        limit     count: how many jobs to examine, under 1000. It may be a few more
-- ROWS   queue     its name; in a cluster, all queues are on one node. '' = that of the row before
--        cursor    where the slice begins, as an earlier call returned it; '0' = the first slice; 'first <count>' = the
--                  slice is this number of jobs with the lowest scores, and the last one; not in lists
--        id        to examine instead of a slice; then the reply has the same cursor. '' = none
-- REPLY  for each queue, a list: the next cursor, '0' = this was the last slice; ids that are left, for the rows of the
--        next call; and for each job that matches: id; its score in the place, or when it finished, or ''; task, group,
--        created, by, reason, error, tags with spaces between them, location, the field `unknown` of its record, each
--        '' = none. It is nil for one of several queues that Redis refuses to read. The last queues may be left out:
--        see read_parts
-- FAILS  none
-- TWICE  it only reads
-- USES   rows, refuse, read_filter, is_inline, matching_job, long_field, decoded, text_or, bytes_matched, size_of,
--        tags_of, place_of, moment_of, read_parts, turn_to, record_key, job_fields
--
-- Jobs that are in the place from the first call to the last are found, whatever else enters or leaves it meanwhile.
-- About 14 us a job whose payload is decoded, and 5 us a queue. Payloads may be long, so a call stops when it has read
-- BYTES_MOST: the ids that it has not examined are left.
--
-- No key lists the jobs that are finished, so all keys of the node are scanned for records, KEYS_AT_ONCE at a time.
-- Each command has keys of one queue, as in `glance`.

local place, filter, limit = unpack(ARGV, 1, 3)
filter, limit = read_filter(filter) or {}, tonumber(limit)
local kind = place:match('^%a+')
local is_list = kind == 'ready' or kind == 'processing'

local BYTES_MOST, KEYS_AT_ONCE = 131072, 1000

-- How many jobs this call has examined.
local examined = 0

-- Members of a sorted set as member, score, ...; fewer when they are long, as inline jobs may be. (MEMORY USAGE samples
-- five members.) A key of another type has none: one group must not stop the others.
local function scan(key, cursor)
  local size = size_of('ZCARD', key)
  if size == 0 then
    return '0', {}
  end
  local average = redis.call('MEMORY', 'USAGE', key) / size
  local count = math.max(1, math.min(limit - examined, math.floor(BYTES_MOST * 4 / average)))
  local found = redis.call('ZSCAN', key, cursor, 'COUNT', count)
  return found[1], found[2]
end

-- Ids in ready, from its end to its front. Workers take jobs from the front, which moves the others towards it; jobs
-- that workers return to the front move the others away from it. So the cursor is how many are left, and the last of
-- these: if it is still there, they end with it.
local function walk(key, cursor, left_of, anchor)
  local last = cursor == '0' and redis.call('LLEN', key) or tonumber(left_of)
  local rank = anchor ~= '' and redis.call('LPOS', key, anchor)
  last = rank and rank + 1 or last
  local first, members = math.max(0, last - math.max(1, limit - examined)), {}
  local ids = last > 0 and redis.call('LRANGE', key, math.max(0, first - 1), last - 1) or {}
  local beyond = first > 0 and table.remove(ids, 1)
  for _, id in ipairs(ids) do
    members[#members + 1] = id
    members[#members + 1] = ''
  end
  return first > 0 and first .. ' ' .. (beyond or '') or '0', members
end

local function records(cursor)
  local found, members = redis.call('SCAN', cursor, 'MATCH', record_key('*'), 'COUNT', KEYS_AT_ONCE), {}
  for i, name in ipairs(found[2]) do
    members[2 * i - 1], members[2 * i] = name:sub(#record_key('') + 1), ''
  end
  return found[1], members
end

-- When a job finished; nil if it has not, or waits, runs or is dead again.
local function finished_at(id)
  local fields = job_fields(id, 'finished', 'worker')
  local finished = not fields.err and moment_of(fields[1])
  return finished and place_of(id, fields[2], finished) == 'finished' and finished or nil
end

local function named(key, ids)
  local members = {}
  for _, id in ipairs(ids) do
    local score = (is_list or kind == 'finished') and '' or redis.pcall('ZSCORE', key, id)
    if type(score) == 'string' then
      members[#members + 1] = id
      members[#members + 1] = score
    end
  end
  return members
end

-- The next cursor, and the members of a slice as member, score, ...
local function next_members(slice)
  local key, cursor = root .. place, slice.cursor
  local first = cursor:match('^first (%d%d?%d?)$')
  if first and not is_list then
    return '0', redis.call('ZRANGE', key, 0, first - 1, 'WITHSCORES')
  end
  local left_of, anchor = cursor:match('^(%d+) ?(.*)$')
  if not left_of or #left_of > (is_list and 15 or 19) or (anchor ~= '' and not is_list) then
    refuse('cursor', 'one of this place')
  end
  redis.call('EXISTS', key) -- refused if another node has the queue by now: what follows would take it for empty
  if slice.ids[1] then
    return cursor, named(key, slice.ids)
  elseif kind == 'finished' then
    return records(cursor)
  elseif is_list then
    return walk(key, cursor, left_of, anchor)
  end
  return scan(key, cursor)
end

local function add_job(found, id, score, job)
  local payload = job.payload or decoded(long_field(id, job.field))
  job.reason = job.reason or (not is_inline(id) and not job.stale and long_field(id, 'reason') or '')
  local at = #found
  found[at + 1], found[at + 2], found[at + 3], found[at + 4] = id, score, text_or(payload.task, ''), job.group
  found[at + 5], found[at + 6], found[at + 7] = job.created or '', job.by or '', job.reason:sub(1, 2000)
  found[at + 8], found[at + 9] = job.error or '', table.concat(tags_of(payload), ' ')
  found[at + 10], found[at + 11] = job.location or '', job.unknown or ''
end

local function read(slice)
  turn_to(slice.queue)
  local next, members = next_members(slice)
  local left, found = {}, {}
  for i = 1, #members, 2 do
    local id, score = members[i], members[i + 1]
    if i > 1 and (bytes_matched > BYTES_MOST or (kind == 'finished' and i > 2 * limit)) then
      left[#left + 1] = id
    else
      score = kind == 'finished' and finished_at(id) or score
      local job = (kind ~= 'finished' or score ~= '') and matching_job(id, kind, score, filter)
      if job then
        add_job(found, id, score, job)
      end
    end
  end
  examined = examined + #members / 2 - #left + 1 -- a queue without jobs takes time too
  return { next, left, found }, bytes_matched > BYTES_MOST and math.huge or #members / 2 + 1
end

local slices = {}
for queue, cursor, id in rows(4, 3) do
  if queue ~= '' or #slices == 0 then
    slices[#slices + 1] = { queue = queue, cursor = cursor, ids = {} }
  end
  local ids = slices[#slices].ids
  ids[#ids + 1] = id ~= '' and id or nil
end
return read_parts(slices, limit - 1, read)
