"""The API of programs that schedule jobs, with an event loop and without one.

Start with `task_handle.py`, what `@app.task` returns, and `job_handle.py`, what `enqueue` returns. `client.py` and
`sync_client.py` send the calls; what they send, and when they send it again, is written once in `operations.py`.
"""
