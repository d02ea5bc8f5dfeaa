"""The commands `evsched ...`: one small module for each family of them.

Start with `root.py`, which lists them all; `options.py` holds their common options, `main.py` how each of them ends.
"""
