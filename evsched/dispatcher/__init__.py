"""The dispatcher: it moves due jobs to the ready lists, sleeps until the next one is due, and recovers lost jobs.

Start with `dispatcher.py`, which lists the loops, and runs them for each primary of a Redis Cluster. `dispatch_loop.py`
moves due jobs, and `timing.py` decides when. `watcher.py` receives keyspace events, and `queue_finder.py` finds the
queues whose events were lost. `recurring.py` puts occurrences on the schedule: it is a duty, as `duty.py`
describes them, and other packages have others. `janitor.py` requeues the jobs of dead workers, and finishes moves
between shards that were interrupted.
"""
