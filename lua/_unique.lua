-- Unique jobs: ids that are taken for some time after a job was enqueued, whatever becomes of that job.
--
-- unique:<id>  string  until when the id is taken, Unix seconds; Redis deletes the key then. If it is not a time, as
--                      other clients may write it, the id is taken as long as the key exists. A key without an expiry
--                      was left by mistake, and takes no id: otherwise it would do so for ever.

local function unique(id)
  return root .. 'unique:' .. id
end

-- Why the id is taken, although its job may have ended and its record may be gone; nil when it is not.
-- USES unique, moment_of
local function still_taken(id, now)
  local text = redis.pcall('GET', unique(id)) -- pcall: a key of another type takes nothing
  if type(text) ~= 'string' or redis.call('PTTL', unique(id)) < 0 then
    return nil
  elseif not moment_of(text) then
    return id .. ' was enqueued before, and is free again when ' .. unique(id) .. ' expires'
  end
  local left = tonumber(text) - now
  return left > 0 and ('%s was enqueued before, and is free again in %.0f s'):format(id, math.ceil(left)) or nil
end

-- Take an id that is free, for `within` seconds from now; '0' = only while its job waits or runs.
-- USES unique, seconds, milliseconds
local function take(id, within, now)
  if within > 0 then
    redis.call('SET', unique(id), seconds(now + within), 'PX', milliseconds(math.max(within, 0.001)))
  else
    redis.call('DEL', unique(id))
  end
end
