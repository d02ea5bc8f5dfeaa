"""The worker process: it fetches jobs, runs their handlers and writes what came of them.

Start with `worker.py`, then follow a job: `fetcher.py` (BLMOVE), `consumer.py` and `exchange.py` (start and end),
`run_starter.py`, `executor.py` (prepare, call, judge). `heartbeat.py` renews the worker's leases, `drain.py` ends it.
"""
