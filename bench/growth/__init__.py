"""How the cost and the lateness of evsched grow: with jobs, queues, workers, dispatchers and the size of payloads.

tables.py has the sizes, and each other module the function that measures one of them. Start reading with tables.py.
"""
