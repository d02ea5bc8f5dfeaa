"""What only evsched does: policies, many recurrences, defences against floods of writes, the price of metrics.

Each module has a function that returns a table, or several. They read the times from the oracle, from the jobs'
records, which Redis's clock wrote, or from a file to which the jobs append.
"""
