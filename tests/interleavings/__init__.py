"""Every interleaving of a few processes over the real scripts, on a real server.

    search.py      the search: breadth first, equal states joined, the shortest path to what is wrong
    server.py      the store of the search: a Redis whose state is saved and restored around each call
    processes.py   dispatcher, janitor, worker and client as sequences of calls
    releases.py    those calls in this release, and in the previous one
    rules.py       what must hold in each state, and after recovery from it
    scenes.py      the scenes: which jobs, which processes, which faults
    batches.py     the scenes of batches, with processes and rules of their own

`make test` searches small scopes of each scene, `make chaos` searches wide ones (tests/chaos/test_interleavings.py).
To search one scene by hand:

    python -m tests.interleavings limit --faults 1 --epochs 1
"""
