-- The audit trail: the acts of operators, in the stream `audit` of the queue.

-- How many entries are kept, about; how many of the latest are compared with an act; and how many bytes the ids in an
-- entry have at most, with 8 for each: so a stream has at most 40 MB of ids.
local ACTS_MOST, ACTS_COMPARED, ACT_IDS_MOST = 10000, 20, 4096

-- Note what an operator has done. `act`: as store/acts.py writes it, the number of the call within the act, an `r` if
-- calls of the act have noted the same jobs before, a space, and the act as JSON; '' or nil = no operator did it.
-- `count`: how many jobs were changed; 0 = nothing is noted, nil = the act is not about jobs. `ids`: their ids; the
-- first of them are kept.
--
-- An act of several calls has one entry: each call replaces that of the one before, and adds its count. So a command
-- that was killed leaves how far it came. A call that is repeated has the number of the entry, and changes nothing, nor
-- does one with an `r`, unless Redis has lost the entry. In all cases the entry is among the latest, unless many others
-- came between: then the act has a second one, and its readers put both together. A key of another type, or a right
-- that is missing, does not stop the act, and Redis's log says so.
-- USES ACTS_MOST, ACTS_COMPARED, ACT_IDS_MOST
local function note_act(act, count, ids)
  local call, known, text = string.match(act or '', '^(%d+)(r?) (.+)$')
  if not call or count == 0 then
    return
  end
  local key, fields, size = root .. 'audit', { 'call', call, 'act', text, 'count', '' }, 0
  local function list(id)
    size = size + #id + 8
    if size <= ACT_IDS_MOST then
      fields[#fields + 1], fields[#fields + 2] = 'id', id
    end
  end
  for _, entry in ipairs(redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', ACTS_COMPARED)) do
    local last = entry[2]
    if last[4] == text then
      if known == 'r' or (tonumber(last[2]) or 0) >= tonumber(call) then
        return
      end
      count = count and count + (tonumber(last[6]) or 0)
      for at = 8, #last, 2 do
        list(last[at])
      end
      redis.pcall('XDEL', key, entry[1])
      break
    end
  end
  for _, id in ipairs(ids or {}) do
    list(id)
  end
  fields[6] = count or ''
  local added = redis.pcall('XADD', key, 'MAXLEN', '~', ACTS_MOST, '*', unpack(fields))
  if type(added) == 'table' then
    redis.log(redis.LOG_WARNING, 'evsched: an act is not in the audit trail ' .. key .. ': ' .. added.err)
  end
end
