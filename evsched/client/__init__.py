"""The API of programs that schedule jobs, with an event loop and without one.

Start with `task_handle.py`, the result of `@app.task`, and `job_handle.py`, the result of `enqueue`. `client.py` sends
the calls; which calls, and when they are sent again, is decided in `operations.py`.
"""
