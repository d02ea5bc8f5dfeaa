"""The dispatcher process: it moves due jobs to the ready lists, sleeps until the next one, and recovers lost jobs.

Start with `dispatcher.py`. `schedule.py` decides when to look, `watcher.py` hears keyspace events, `recurring.py` puts
occurrences on the schedule, and `janitor.py` requeues what dead workers held.
"""
