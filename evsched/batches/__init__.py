"""Batches: jobs that belong together are counted exactly, and a callback runs when all of them have ended.

`batch.py` is for programs: it opens a batch and adds jobs to it. `keeper.py` is a loop beside each dispatcher: it
carries the ends of jobs to the home of their batch, and does everything that is to be done later. `member.py` finds the
jobs of a batch, `pace.py` says how fast they end, `priority.py` gives them another priority, and `sync_batch.py` is for
programs without an event loop. The counting is done in Redis: lua/_batches.lua.
"""
