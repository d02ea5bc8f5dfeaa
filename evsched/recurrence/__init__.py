"""Calendar rules: when a recurrence falls due next, and when a service window is open.

Values and pure functions that do not use Redis. Start with `recurrence.py`.
"""
