"""The schedulers that are compared, one file each: versions, the task, the processes, how to enqueue and schedule.

bench/produce.py says what such a file has. They run in environments of their own, where little else is installed. Start
reading with evsched.py.

Each has one worker process. Those with asynchronous tasks run 32 at the same time, as in the published benchmark of
one of them (streaq), which compares four; the others have the number of threads or processes that their documentation
starts with. Logs are kept to warnings.
"""
