"""The live view of `evsched top`. Start with `collector.py`, which asks Redis and the workers.

`snapshot.py` makes a page of their replies, as a value; `cli/top_commands.py` draws it.
"""
