"""What is lost, and what is not: the figures of docs/reliability.md. `losses` is about Redis, `faults` about evsched.

Read `scene.py` first.
"""
