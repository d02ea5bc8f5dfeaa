"""What work evsched gives one Redis and the nodes of a cluster, and what follows for larger rates: docs/scaling.md.

tables.py has the sizes, site.py the servers and what they count, fleet.py the processes and their jobs, idle.py what
they do without jobs, enqueue.py what it takes to schedule, and capacity.py calculates from these tables. Start reading
with tables.py.
"""
