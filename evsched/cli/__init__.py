"""The commands `evsched ...`: one small module for each family of them.

Start with `root.py`, which lists them all; `options.py` holds what they share, `main.py` how each of them ends.
"""
