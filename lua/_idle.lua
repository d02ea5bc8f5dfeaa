-- Idle workers: those that wait for a message, and not in BLMOVE. A BLMOVE occupies a connection and reads one list,
-- so a worker of many shards would need a connection for each. The messages of all queues of a server arrive on one.
--
-- idle  zset  worker -> since when it waits
--
-- `start` adds a worker in the same call in which it finds ready empty. The scripts that put a job into ready
-- take out the worker that has waited longest, and send it a message on its own channel. So one job wakes one worker,
-- and no job is put into ready while a worker stays in `idle`.
local idle = root .. 'idle'

-- Tell as many idle workers as jobs were put into ready. The connection of a worker that has died receives nothing: the
-- next worker is told. pcall: a key of another type, or a user without the right, stops no job that others fetch.
-- USES idle
local function call_idle(jobs)
  while jobs > 0 do
    local first = redis.pcall('ZPOPMIN', idle, math.min(jobs, 100))
    if first.err or #first == 0 then
      return
    end
    for i = 1, #first, 2 do
      local told = redis.pcall('SPUBLISH', root .. 'idle:' .. first[i], '')
      if type(told) == 'number' and told > 0 then
        jobs = jobs - 1
      end
    end
  end
end

-- A worker waits no more. If it was told of a job, which it does not take, another one is told. Of a worker that did
-- not come, '', nobody knows how many others hang: all that wait are told.
-- USES idle, call_idle, size_of
local function decline(worker)
  if redis.pcall('ZREM', idle, worker) ~= 1 and size_of('LLEN', ready) > 0 then
    call_idle(worker == '' and size_of('ZCARD', idle) or 1)
  end
end
