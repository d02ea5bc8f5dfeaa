"""What a process tells about itself: metrics, log lines, health over HTTP.

Nothing here is called by the loops: it reads their events. Start with `metrics.py`; `process.py` puts it together.
"""
