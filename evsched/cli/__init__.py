"""The commands `evsched ...`: one module for each family of them.

Start with `commands.py`, which lists them all; `options.py` holds their common options, `command_client.py` the client
with which they use Redis, `main.py` how each of them ends.
"""
