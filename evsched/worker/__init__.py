"""The worker process: it fetches jobs, hands them to `evsched/execution/`, and writes their outcomes.

Start with `worker.py`, then follow a job through `consumer.py`, which names its steps: `fetcher.py` waits for it, for
the messages of `notices.py`, and `exchange.py` starts and ends it. `slots.py` decides how many jobs are
fetched, and shares the worker among its queues. `setup.py` begins a worker, `heartbeat.py` renews its leases,
`drain.py` ends it. It may import `execution`, `runtime` and `store`, but neither `dispatcher` nor `client`.
"""
