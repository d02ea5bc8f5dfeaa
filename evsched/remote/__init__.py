"""Workers in other languages, over HTTP: each of their requests, made of the calls of our own workers.

`remote_worker.py` is all of it; `evsched/api/worker_handlers.py` calls it, and nothing in the core imports it. The
lease and the jobs of such a worker are in Redis, under its own name. So any API process serves its next request, and a
dispatcher has its jobs start elsewhere when it dies. It may import `worker`, `execution` and `client`.
"""
