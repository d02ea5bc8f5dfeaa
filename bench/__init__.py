"""The benchmark: evsched beside other schedulers, beside other designs, and alone. `python -m bench --help`.

comparison.py measures all schedulers, which schedulers/ has, one file each; alternatives/ has the other designs, and
own/ what only evsched does. docs/performance.md tells the method. Start reading with comparison.py.
"""
