"""The checks of `evsched doctor`, and the audit of a queue.

Start with `doctor.py`. `server_checks.py` and `cluster_checks.py` judge servers, `queue_checks.py`, `standstill.py` and
`audit.py` the queues; each finding has its meaning and its remedy.
"""
