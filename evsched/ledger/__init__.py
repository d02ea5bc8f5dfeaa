"""The ledger: jobs and recurrences in PostgreSQL, which programs insert in their transactions and Redis cannot lose.

A relay (`evsched ledger run`) copies rows that were committed to Redis, and the ends of their jobs back. It works with
the store and the client, and knows no dispatcher and no worker. This package needs psycopg, the extra `ledger`.

Start with `tables.py`: what a row is. `rows.py` has the statements, `relay.py` and `ends.py` the loops.
A program inserts with `client/transaction.py`, which needs no library.
"""
