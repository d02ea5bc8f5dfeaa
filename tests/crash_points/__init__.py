"""Processes that die, or hang, before or after each call of the store.

    injection.py   the fault: a process strikes itself at one of its calls
    scenes.py      the scenes: which processes run, which of them strike, and how the jobs must end
    programs.py    the programs of the scenes, which schedule jobs
    witness.py     the app of the scenes
    testimony.py   what its handlers write down outside Redis
    attack.py      one scene with one fault: processes run, die and are replaced until all jobs have ended
    verdict.py     what must hold afterwards

A recording of a scene lists the calls of a process. Before and after each of them it is killed, or stopped until its
lease is gone. `make test` shows a few of these points, `make chaos` more (tests/chaos/test_crash_points.py). To attack
some by hand:

    python -m tests.crash_points jobs worker "start 2 after kill" "begin 1 before stop"
"""
