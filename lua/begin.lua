#!lua flags=allow-oom
-- begin: moves nothing. Marks runs that have begun, or are about to: if their worker dies, their attempts count by it.
--
-- KEYS   root      prefix of the queue's keys
-- ARGV   worker    who runs the jobs
-- ROWS   id        of the job
--        run       as `start` named it
--        mark      '1' = it has begun; 'alone' = it has begun, and no other run is in its worker; 'soon' and
--                  'soon alone' = it is about to begin
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call writes the same
-- USES   processing, rows, owns, record
--
-- Most runs end before the delay after which workers mark them. Suspects are marked before they begin.

local worker = unpack(ARGV, 1, 1)
local list = processing(worker)

local lost = {}
for id, run, mark in rows(2, 3) do
  if owns(worker, id, run) and redis.call('LPOS', list, id) then
    redis.call('HSET', record(id), 'begun', mark)
  else
    lost[#lost + 1] = id
  end
end
return lost
