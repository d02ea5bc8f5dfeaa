"""The commands `evsched ...`: one small module for each family of them.

Start with `main.py`, which lists them all; `root.py` holds the options that they share.
"""
