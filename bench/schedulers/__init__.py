"""The schedulers that are compared, one file each: versions, the task, the processes, how to enqueue and schedule.

bench/produce.py says what such a file has, for Node bench/produce.mjs, and for Ruby bench/produce.rb;
bench/environments.py says what its header has. They run in environments of their own, where little else is installed.
Start reading with evsched.py.

Each has one worker process. Those of Python with asynchronous tasks run 32 at the same time, as in the published
benchmark of one of them (streaq), which compares four; the others have what their documentation starts with or advises,
which the note in their header says. Logs are kept to warnings.
"""
