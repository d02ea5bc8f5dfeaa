#!lua flags=allow-oom
-- progress: moves nothing. Stores the progress of runs, as reported by their handlers, and publishes it.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   worker    who runs the jobs
-- ROWS   id        of the job
--        run       as `start` named it
--        progress  JSON: done, total, note
-- REPLY  how many runs still belonged to this worker; nothing is written for the others
-- FAILS  none
-- TWICE  the second call writes the same
-- USES   rows, owns, record

local worker = unpack(ARGV, 1, 1)

local kept = 0
for id, run, progress in rows(2, 3) do
  if owns(worker, id, run) then
    redis.call('HSET', record(id), 'progress', progress)
    redis.call('PUBLISH', root .. 'progress:' .. id, progress)
    kept = kept + 1
  end
end
return kept
