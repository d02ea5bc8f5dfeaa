"""The API of programs that schedule jobs, with an event loop and without one.

Start with `task_handle.py`, the result of `@app.task`, and `job_handle.py`, the result of `enqueue`. `client.py` has
what clients do with jobs, `queue_client.py` what they do with queues. Both only choose an operation: which calls it
makes, and when they are sent again, is decided in `operations.py`.
"""
