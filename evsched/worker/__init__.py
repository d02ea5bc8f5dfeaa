"""The worker process: it fetches jobs, hands them to `evsched/execution/`, and writes what came of them.

Start with `worker.py`, then follow a job: `fetcher.py` (BLMOVE) or, in a shard, `notices.py` and `idle_wait.py`,
`consumer.py` and `exchange.py` (start and end),
`run_starter.py`. `demand.py` decides how many jobs are fetched, `slots.py` shares the worker among its queues,
`heartbeat.py` renews its leases, `drain.py` ends it.
It may import `execution`, `runtime` and `store`, but neither `dispatcher` nor `client`.
"""
