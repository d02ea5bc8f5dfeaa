"""The processes that people start: a dispatcher, a worker, a parent with worker processes.

Start with `service.py`, which starts each service. `supervisor.py` is the parent of `worker --processes`,
`worker_process.py` one of its children, from both sides, and `job_process.py` the program that runs user code in a
process of its own. Only `cli` and `demo` import this package.
"""
