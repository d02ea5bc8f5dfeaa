-- Completion: what the end of a run writes whose handler has returned.

-- Return the function `finish` for `end_runs`, for runs that are done; its last arguments are result, retention and
-- reply, as in `complete`. `hook` and `task`: see `call_hook`; '' = no hook. A run that was told to stop ends as
-- cancelled, even if it succeeded.
-- USES seconds, abort, acquit, note_end, push_reply, call_hook, record, begin_next, milliseconds, row_of
local function completion(now, hook, task)
  local moment = seconds(now)
  -- The retentions as PEXPIRE takes them, by their text: most jobs have the same.
  local lifetimes = {}
  return function(id, run, scheduled, result, retention, reply)
    if run[5] then
      return abort(id, 'cancelled while it ran', tonumber(retention), reply, now)
    end
    acquit(id)
    local row = row_of(run[8])
    if run[6] or row then
      note_end(id, 'done', now, nil, retention)
    end
    if reply == '1' or run[3] then
      push_reply(id, 'done', result, nil, tonumber(retention))
    end
    if hook ~= '' then
      call_hook(hook, task, id, 'done', result, nil, now)
    end
    local key = record(id)
    if run[4] or scheduled then
      begin_next(id, run[4])
    elseif retention == '0' and not row then
      redis.call('DEL', key)
    else
      redis.call('HSET', key, 'outcome', 'done', 'result', result, 'finished', moment)
      if run[7] then
        redis.call('HDEL', key, 'reason', ATTEMPT_FIELDS) -- of an earlier run
      end
      if not row then
        lifetimes[retention] = lifetimes[retention] or milliseconds(tonumber(retention))
        redis.call('PEXPIRE', key, lifetimes[retention])
      end
    end
  end
end
