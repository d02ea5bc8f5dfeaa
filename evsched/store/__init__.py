"""The calls of one queue: one method per verb, each with its Lua script, and their replies as values.

The only package that knows the scripts. It sends nothing: a method returns a `Call`, and a sender of `transport/`
sends it to Redis. Start with `store.py`; the methods are grouped in files by their callers.
"""
