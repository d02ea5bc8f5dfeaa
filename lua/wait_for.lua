#!lua flags=allow-oom
-- wait_for: moves nothing. Tells a run whether a signal has come and, if not, until when it may wait for it.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who runs the job
--        id        of the job
--        run       as `start` named it
--        signal    its name
--        timeout   number or '': seconds that the job may wait, from the first call on; '' = without an end
-- REPLY  'come' and the value, JSON; 'over' and '' = its time is over; 'waits' and until when, Unix seconds or `inf`;
--        'lost' and '' = the run does not belong to this worker any more; 'full' and '' = the record keeps too many
--        waits
-- FAILS  none
-- TWICE  the second call writes nothing; it finds a signal that has come meanwhile
-- USES   clock, seconds, run_is_here, record, signal_of, awaited_until, kept_text, WAITS_MOST, check_signal
--
-- A run that gets 'waits' ends by `snooze`, which looks for the signal once more. So that all runs of a job get the
-- same reply, `signal` takes none whose time is over.

local now, worker, id, run, signal, timeout = unpack(ARGV, 1, 6)
now = clock(now)
check_signal(signal)

if not run_is_here(worker, id, run) then
  return { 'lost', '' }
end
local value, ends = signal_of(id, signal), awaited_until(id, signal)
if value then
  return { 'come', value }
elseif not ends then
  ends = timeout == '' and math.huge or now + math.max(0, tonumber(timeout))
  local text = kept_text(id, 'waits')
  text = text .. signal .. '\t' .. seconds(now) .. '\t' .. (ends == math.huge and 'inf' or seconds(ends)) .. '\n'
  if #text > WAITS_MOST then
    return { 'full', '' }
  end
  redis.call('HSET', record(id), 'waits', text)
end
if ends <= now then
  return { 'over', '' }
end
return { 'waits', ends == math.huge and 'inf' or seconds(ends) }
