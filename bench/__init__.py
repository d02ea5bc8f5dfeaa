"""The benchmark: evsched beside other schedulers, beside other designs, at many sizes, and alone. `python -m bench -h`.

comparison.py measures all schedulers, those for Node and Ruby too, which schedulers/ has, one file each; alternatives/
has the other designs, growth/ the sizes, and own/ what only evsched does. groups.py lists all tables, and targets.py
what their figures should be. docs/performance.md tells the method. Start reading with comparison.py.
"""
