"""The checks of `evsched doctor`, and the audit of a queue.

Start with `doctor.py`. `audit_rules.py` and `server_checks.py` say what each fault means and how to fix it.
"""
