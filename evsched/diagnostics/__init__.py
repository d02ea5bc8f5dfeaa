"""The checks of `evsched doctor`, and the audit of a queue.

Start with `doctor.py`. `server_checks.py` judges servers; `queue_checks.py`, `standstill.py` and `audit.py` the queues;
`ledger_checks.py` the ledger. Each finding has its meaning and its remedy.
"""
