"""Chains and graphs: jobs that run in an order, and get each other's results.

`graph.py` is for programs: it builds a graph, checks it, and enqueues it as a batch whose first jobs are its nodes. The
order is kept in Redis (lua/_graphs.lua), and the keepers of batches start the nodes (batches/starter.py).
"""
