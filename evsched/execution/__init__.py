"""One run of a job, from the fetched job to its outcome: prepare, call the handler, judge.

Start with `executor.py`. `run.py` reads the payload, finds the task, and judges what the handler did. `deferral.py`
returns a job that cannot begin now. `handlers.py` calls the handler on the event loop, in a thread or in a process
(`process_pool.py`), and ends it in time. `precautions.py` says how a job runs that may kill its process, and runs it
isolated. Nothing here knows queues, fetching or other workers.
"""
