"""What a job is: its payload and record, its task and arguments, its retry policy, and what a handler sees of it.

Values and pure functions; nothing here touches Redis. Start with `job.py`.
"""
