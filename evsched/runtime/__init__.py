"""What every long-running process needs: its loops, their pulses, wake-ups, reconnecting, and an orderly end.

Start with `loops.py`. Whether a loop is late is decided in `pulse.py`, and how Redis's errors are waited out in
`reconnect.py`.
"""
