#!lua flags=no-writes
-- recall: moves nothing. Reads the results of steps, and the positions, that earlier runs of a job have kept.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   worker    who runs the job
--        id        of the job
--        run       as `start` named it
-- REPLY  'kept', or 'lost' = the run does not belong to this worker any more; the field `steps`, see _steps.lua, '' =
--        there is none, or it is longer than evsched writes it
-- FAILS  none
-- TWICE  it only reads
-- USES   run_is_here, kept_text

local worker, id, run = unpack(ARGV, 1, 3)

if not run_is_here(worker, id, run) then
  return { 'lost', '' }
end
return { 'kept', kept_text(id, 'steps') }
