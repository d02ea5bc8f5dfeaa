-- Hooks: the job of another task that the end of a job puts on the schedule, in the same script.

-- Bytes of a result that a hook's job gets: a payload that exceeds the cap of dispatchers could not run.
local RESULT_PASSED = 65536

-- Schedule the job of the task `hook`, because a job of `task` has ended. `result` is JSON text.
--
-- Its id, `<id>.<outcome>.<when it ended>`, is another one for each end of a job that is revived or whose id is used
-- again. A long id is replaced by its SHA-1. The record is deleted first, so that nothing here can be refused.
-- USES RESULT_PASSED, seconds, attempt_of, field_of, record, write_record, whole_seconds
local function call_hook(hook, task, id, outcome, result, reason, now)
  local moment = seconds(now)
  local suffix = '.' .. outcome .. '.' .. moment
  local name = (#id + #suffix <= 200 and id or redis.sha1hex(id)) .. suffix
  local ended = '{"id":"' .. id .. '","task":' .. cjson.encode(task) .. ',"outcome":"' .. outcome .. '"'
  ended = ended .. ',"attempts":' .. attempt_of(field_of(id, 'attempt'))
  if #result <= RESULT_PASSED then
    ended = ended .. ',"result":' .. result
  end
  if reason then
    ended = ended .. ',"reason":' .. cjson.encode(reason)
  end
  redis.call('DEL', record(name))
  write_record(name, '{"task":' .. cjson.encode(hook) .. ',"args":[' .. ended .. '}]}', '', '', whole_seconds(now))
  redis.call('ZADD', schedule, moment, name)
end
