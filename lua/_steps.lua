-- Data that runs keep for the later runs of their job, and signals to it. All of it is in three fields of the job's
-- record, so it moves, expires and ends with that. Each is lines of `<name> TAB <moment> TAB <rest>`:
--
-- steps    the results of steps: their name is a JSON text, the rest JSON; and positions, whose name begins with `@`
-- signals  the signals that have come: the rest is JSON
-- waits    the signals that were waited for: the rest is until when, Unix seconds or `inf`
--
-- While a job waits for a signal on the schedule, the field `waiting` names it: no run holds the job then.

-- Bytes that each field has at most.
local STEPS_MOST = 262144
local SIGNALS_MOST = 65536
local WAITS_MOST = 16384
-- Bytes of a field that are read: a producer may have written more.
local KEPT_READ = 524288

-- Whether a run has not ended and belongs to this worker.
-- USES holds, owns
local function run_is_here(worker, id, run)
  return holds(worker, id) and owns(worker, id, run)
end

-- The text of one of these fields; '' when there is none, or it is too long.
-- USES KEPT_READ, field_size, whole_field
local function kept_text(id, field)
  local size = field_size(id, field)
  if type(size) ~= 'number' or size == 0 or size > KEPT_READ then
    return ''
  end
  return whole_field(id, field)
end

-- The line of a name in such a text: its first and its last byte, and what follows the name; nil if there is none.
local function find_line(text, name)
  local head, first = name .. '\t', 1
  if text:sub(1, #head) ~= head then
    local before = text:find('\n' .. head, 1, true)
    if not before then
      return nil
    end
    first = before + 1
  end
  local last = text:find('\n', first, true) or #text
  return first, last, (text:sub(first + #head, last):gsub('\n$', ''))
end

-- The value of a signal that has come, as JSON; nil if it has not.
-- USES kept_text, find_line
local function signal_of(id, signal)
  local _, _, rest = find_line(kept_text(id, 'signals'), signal)
  return rest and rest:match('^[^\t]*\t(.*)$')
end

-- Until when a job may wait for a signal, as a number; nil if no run has waited for it.
-- USES kept_text, find_line, moment_of
local function awaited_until(id, signal)
  local _, _, rest = find_line(kept_text(id, 'waits'), signal)
  local text = rest and rest:match('^[^\t]*\t(.*)$')
  return rest and (text == 'inf' and math.huge or tonumber(moment_of(text) or '0'))
end

-- Refuse the name of a signal that is not valid. Names of steps are JSON texts, in which neither character stands.
-- USES is_id, refuse
local function check_signal(name)
  if #name > 100 or not is_id(name) then
    refuse('signal', 'the name of a signal')
  end
end
