"""The worker process: it fetches jobs, runs their handlers and writes what came of them.

Start with `worker.py`, then follow a job: `fetcher.py` (BLMOVE), `consumer.py` (start and end), `executor.py` (the
handler). `heartbeat.py` renews the worker's leases.
"""
