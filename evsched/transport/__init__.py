"""The transport to Redis: calls as values, the Lua scripts, connections, and the senders that batch calls.

The only package that opens sockets to Redis. It knows commands and replies, not jobs. Start with `call.py`.
"""
