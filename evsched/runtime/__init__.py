"""The parts of every service: loops that wake up and show whether they hang, waiting for Redis, an orderly end.

Start with `loops.py`. `reconnect.py` decides how long to wait after an error of Redis, and `shutdown.py` how the
process ends. The loops of `dispatcher` and `worker` import this package; `services` starts both.
"""
