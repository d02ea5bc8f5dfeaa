"""The dispatcher process: it moves due jobs to the ready lists, sleeps until the next one, and recovers lost jobs.

Start with `dispatcher.py`, which lists the loops. `dispatch_loop.py` moves due jobs, and `timing.py` decides when.
`watcher.py` receives keyspace events, `flood.py` stops those that are too many, and `queue_finder.py` finds the queues
whose events were lost. `recurring.py` puts occurrences on the schedule, and `janitor.py` requeues what dead workers
held.
"""
