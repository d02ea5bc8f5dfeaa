"""Figures of evsched alone: policies, floods of writes, an outage's end, many recurrences, the price of metrics.

Each module has a function that returns a table, or several. They read the times from the jobs' records, which Redis's
clock wrote, or from a file to which the jobs append.
"""
