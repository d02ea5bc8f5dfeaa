"""The dispatcher: it moves due jobs to the ready lists, sleeps until the next one is due, and recovers lost jobs.

Start with `dispatcher.py`, which lists the loops. `dispatch_loop.py` moves due jobs, and `timing.py` decides when.
`watcher.py` receives keyspace events, and `queue_finder.py` finds the queues whose events were lost. `recurring.py`
puts occurrences on the schedule. `janitor.py` requeues the jobs of dead workers, and `mover.py` finishes moves between
shards. In a Redis Cluster, `cluster.py` runs a dispatcher for each primary.
"""
