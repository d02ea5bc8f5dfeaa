"""The calls of one queue: one method per verb, each with its Lua script, and their replies as values.

The only package that knows the scripts. It sends nothing: a method returns a `Call`, and a sender of `transport/`
carries it to Redis. Start with `store.py`; the methods stand in files by who calls them.
"""
