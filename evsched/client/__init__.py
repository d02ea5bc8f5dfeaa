"""The API of programs that schedule jobs, with an event loop and without one.

Start with `task_handle.py`, what `@app.task` returns, and `job_handle.py`, what `enqueue` returns. `client.py` and
`sync_client.py` send the calls; which calls, and when they are sent again, is decided once in `operations.py`.
"""
