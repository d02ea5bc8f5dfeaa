"""What every long-running process needs: loops, pulses that show a loop hangs, wake-ups, reconnecting, an orderly end.

Start with `loops.py`. `pulse.py` decides whether a loop hangs, `reconnect.py` how long to wait after an error of Redis,
and `shutdown.py` how the process ends.
"""
