"""The API of programs that schedule jobs, with an event loop and without one.

Start with `client.py`. `task_handle.py` is what `@app.task` returns, `job_handle.py` what an enqueue returns.
"""
