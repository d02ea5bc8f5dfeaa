"""The reports of a process about itself: metrics, log lines, and its health over HTTP.

The loops do not call this package: it subscribes to their events. Start with `metrics.py`; `process_telemetry.py`
puts the parts together.
"""
