-- Suspects: jobs that workers held when they died. One of them may have killed its worker.
--
-- suspects  hash  id -> how many workers died, in how many of those runs it is unknown whether the job had begun, and,
--                 unless it is 0, how many such runs are counted as attempts
--
-- A producer may write every field of a record, so the suspicion is not one of them: a repeated suspect costs its
-- worker a process, and false suspects would hold the other jobs up.

-- Seconds after the last death until all suspects are forgotten, so that deleted jobs leave nothing behind.
local SUSPECTED = 7 * 86400

local suspects = root .. 'suspects'
local suspecting = redis.call('EXISTS', suspects) == 1

-- A job's deaths, doubtful runs and counted doubtful runs: 0, 0, 0 when it is no suspect.
-- pcall: a key of another type holds no suspects.
-- USES suspects, suspecting
local function suspicion_of(id)
  if not suspecting then
    return 0, 0, 0
  end
  local text = redis.pcall('HGET', suspects, id)
  text = type(text) == 'string' and text or ''
  local deaths, doubts, counted = text:match('^(%d%d?%d?) (%d%d?%d?) ?(%d?%d?%d?)$')
  return tonumber(deaths or 0), tonumber(doubts or 0), tonumber(counted) or 0
end

-- Write how many workers died that held the job, in how many of those runs it is unknown whether it had begun, and how
-- many such runs are counted as attempts.
-- USES suspects, suspecting, milliseconds, SUSPECTED
local function mark_suspect(id, deaths, doubts, counted)
  suspecting = true
  local more = counted > 0 and ' ' .. math.min(counted, 999) or ''
  redis.pcall('HSET', suspects, id, math.min(deaths, 999) .. ' ' .. math.min(doubts, 999) .. more)
  redis.call('PEXPIRE', suspects, milliseconds(SUSPECTED))
end

-- The job is gone or has ended for good: it is no longer a suspect.
-- USES suspects, suspecting
local function acquit(id)
  if suspecting then
    redis.pcall('HDEL', suspects, id)
  end
end

-- A run of the job has ended: it is no longer a suspect. The record keeps the number of its doubtful runs.
-- USES suspicion_of, mark_suspect, acquit
local function clear_suspicion(id)
  local _, _, counted = suspicion_of(id)
  if counted > 0 then
    mark_suspect(id, 0, 0, counted)
  else
    acquit(id)
  end
end
