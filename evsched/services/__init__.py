"""The processes that people start: a dispatcher, a worker, a parent with worker processes.

The only package that starts loops. Start with `service.py`; `supervisor.py` is the parent of `worker --processes`.
"""
