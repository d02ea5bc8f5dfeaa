#!lua flags=allow-oom
-- signal: moves nothing, or schedule -> schedule: a job that waits for the signal is due now. A signal that comes
-- before the job waits for it is kept with the job.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        id        of the job
--        signal    its name: 1 to 100 of A-Z a-z 0-9 . _ : @ -
--        value     JSON in UTF-8, in one line, nested at most 200 deep
--        act       of an operator, for the audit trail: see _acts.lua; '' = none
-- REPLY  'due' = the job waited for it; 'kept' = it does not wait for it yet; 'known' = a signal of that name has come
--        before, which stays, and nothing was written
-- FAILS  MISSING   there is no such job, it has ended or is dead, or its wait for this signal is over
--        INVALID   the value is not such JSON, or the record has no room for it
--        MOVING    it is on its way to another shard
-- TWICE  the second call replies 'known', and changes nothing
-- USES   clock, seconds, record, fail, expect, place_of, field_of, moving_due, IS_MOVING, kept_text, find_line,
--        awaited_until, SIGNALS_MOST, check_signal, worker_of, holds, note_act, field_size

local now, id, signal, value, act = unpack(ARGV, 1, 5)
now = clock(now)
check_signal(signal)

-- Whether workers can read this as JSON. cjson accepts more than JSON is: NaN, 0x10, control characters in a string.
local function is_json(text)
  local bare = text:gsub('\\.', ''):gsub('"[^"]*"', ' " ')
  for word in bare:gmatch('[^%s%[%]{},:"]+') do
    local number = word:find('^%-?%d') and not word:find('^%-?0%d') and not word:find('%.%D') and not word:find('%.$')
    local valid = number and not word:find('[^%d.eE+-]') and math.abs(tonumber(word) or math.huge) < math.huge
    if not valid and word ~= 'true' and word ~= 'false' and word ~= 'null' then
      return false
    end
  end
  local depth = 0
  for bracket in bare:gmatch('[%[%]{}]') do
    depth = depth + (bracket:find('[%[{]') and 1 or -1)
    if depth > 200 then
      return false
    end
  end
  local ascii = text:gsub('[\194-\223][\128-\191]', ' '):gsub('\237[\160-\191]', '\255')
  ascii = ascii:gsub('\224[\128-\159]', '\255'):gsub('[\224-\239][\128-\191][\128-\191]', ' ')
  ascii = ascii:gsub('\240[\128-\143]', '\255'):gsub('\244[\144-\191]', '\255')
  ascii = ascii:gsub('[\240-\244][\128-\191][\128-\191][\128-\191]', ' ')
  return not ascii:find('[%z\1-\31\128-\255]') and pcall(cjson.decode, text)
end
if #value <= SIGNALS_MOST and not is_json(value) then
  return fail('INVALID', 'the value of the signal ' .. signal .. ' is not JSON in one line, nested at most 200 deep')
end

expect('ZCARD', schedule, dead)
local worker, finished = field_of(id, 'worker'), field_of(id, 'finished')
local described = field_size(id, 'payload') ~= 0
local place = described and place_of(id, worker, finished)
if moving_due(id) then
  return fail('MOVING', id .. IS_MOVING)
elseif place == 'dead' then
  return fail('MISSING', id .. ' is dead: revive it, then send the signal')
elseif finished then
  return fail('MISSING', id .. ' has ended, so it takes no signal')
elseif described and not place then
  local why = ': it was taken off the schedule, or never put there'
  return fail('MISSING', id .. ' has a record, but neither waits nor runs' .. why)
elseif not place then
  local why = ' has no record: it never existed, has ended, waits as an inline job, or as a node of a graph'
  return fail('MISSING', id .. why)
end
local text, ends = kept_text(id, 'signals'), awaited_until(id, signal)
if find_line(text, signal) then
  return 'known'
elseif ends and ends <= now then
  return fail('MISSING', id .. "'s wait for the signal " .. signal .. ' was over before it came')
end
text = text .. signal .. '\t' .. seconds(now) .. '\t' .. value .. '\n'
if #text > SIGNALS_MOST then
  local room = 'the signals of a job have at most ' .. SIGNALS_MOST .. ' bytes in all, with their names'
  return fail('INVALID', id .. ' has no room for the signal ' .. signal .. ': ' .. room)
end
redis.call('HSET', record(id), 'signals', text)
local reply = 'kept'
if field_of(id, 'waiting') == signal and not holds(worker_of(worker), id) and redis.call('ZSCORE', schedule, id) then
  redis.call('ZADD', schedule, 'XX', seconds(now), id)
  redis.call('HDEL', record(id), 'waiting')
  reply = 'due'
end
note_act(act, 1, { id })
return reply
