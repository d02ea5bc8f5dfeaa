"""A job: its payload and record, its task and arguments, its retry policy, and the view that a handler has of it.

Values and pure functions; nothing here touches Redis. Start with `job.py`.
"""
