"""What finds faults: the checks of `evsched doctor`, the audit of a queue, and why a job has not run yet.

Start with `doctor.py`. What each fault means, and its mend, stands in `audit_rules.py` and `server_checks.py`.
"""
