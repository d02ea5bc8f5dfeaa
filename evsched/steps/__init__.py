"""Steps: a long handler goes on behind what it has finished, after a crash, a deploy or a retry; docs/steps.md.

    from evsched.steps import resumable, step, wait_for

`step_results.py` runs a function once in a job, `row_loop.py` saves the place of a loop over rows, and `signal_wait.py`
ends the run until a signal comes. Start with `memory.py`, which has what they share: the questions that a run asks
about the data that its job has kept. The core answers them (`jobs/kept.py`), and imports nothing of this package.
"""

from __future__ import annotations

from evsched.steps.memory import RunStopped
from evsched.steps.row_loop import resumable
from evsched.steps.signal_wait import SignalTimeout, wait_for
from evsched.steps.step_results import step

__all__ = ["RunStopped", "SignalTimeout", "resumable", "step", "wait_for"]
