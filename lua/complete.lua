#!lua flags=allow-oom
-- complete: processing -> finished.
--
-- KEYS   root       prefix of the queue's keys
-- ARGV   now        seconds, '' = Redis's clock
--        worker     who ran the jobs
--        hook       the task that gets a job for each that ends here, '' = none
--        task       the task of the jobs, if there is a hook
--        plain      '1' = JSON has all ids as they are
-- ROWS   id         of the job
--        run        that ends, as `start` named it
--        result     JSON
--        retention  number: seconds that the record is kept, '0' = not at all
--        reply      '1' = push the outcome to the job's reply list
--        label      JSON, a list of its task and its tags, for the history
-- REPLY  ids of the runs that did not belong to this worker any more: LOST, nothing was written for them
-- FAILS  none
-- TWICE  the second call finds every run lost
-- RARE   abort, holds, field_of, split_groups, json_text, note_end, push_reply, call_hook, begin_next, write_light,
--        open
-- USES   clock, completion, end_runs
--
-- A run that was to stop ends as cancelled, even if it succeeded. About 5 us a job: a job is near the head of its
-- worker's short list.

local now, worker, hook, task, plain = unpack(ARGV, 1, 5)
now = clock(now)
return end_runs(6, 6, worker, now, completion(now, hook, task, plain), true)
