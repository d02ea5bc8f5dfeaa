"""What finds faults: the checks of `evsched doctor`, the audit of a queue, and why a job has not run yet.

Start with `doctor.py`. `audit_rules.py` and `server_checks.py` say what each fault means and how to fix it.
"""
