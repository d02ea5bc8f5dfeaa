#!lua flags=allow-oom
-- keep: moves nothing. Keeps results of steps, and positions, of runs for the later runs of their jobs.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   now       seconds, '' = Redis's clock
--        worker    who runs the jobs
-- ROWS   id        of the job
--        run       as `start` named it
--        name      of the step, as a JSON text; with `@` before it, of a position
--        value     JSON
-- REPLY  for each row: 'kept'; 'lost' = the run does not belong to this worker any more; 'full' = with it the record
--        would keep too many bytes. Nothing is written for the last two
-- FAILS  none
-- TWICE  the second call writes the same
-- USES   clock, rows, seconds, run_is_here, record, kept_text, find_line, STEPS_MOST, refuse
--
-- A name has one line: a later value replaces the earlier one. About 10 us for a row, and at most 1 ms when the record
-- keeps as much as it may, since the field is written again.

local now, worker = unpack(ARGV, 1, 2)
now = seconds(clock(now))

for _, _, name, value in rows(3, 4) do
  if name == '' or name:find('[\t\n]') then
    refuse('name', 'the name of a step')
  elseif value:find('\n', 1, true) then
    refuse('value', 'JSON in one line')
  end
end
local replies = {}
for id, run, name, value in rows(3, 4) do
  local reply = 'lost'
  if run_is_here(worker, id, run) then
    local text = kept_text(id, 'steps')
    local first, last = find_line(text, name)
    if first then
      text = text:sub(1, first - 1) .. text:sub(last + 1)
    end
    local line = name .. '\t' .. now .. '\t' .. value .. '\n'
    reply = #text + #line > STEPS_MOST and 'full' or 'kept'
    if reply == 'kept' then
      redis.call('HSET', record(id), 'steps', text .. line)
    end
  end
  replies[#replies + 1] = reply
end
return replies
