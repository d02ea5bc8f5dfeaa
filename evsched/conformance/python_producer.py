"""The producer of docs/conformance.md with our own client: `python -m evsched.conformance.python_producer`."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from evsched.client.option_values import Unique
from evsched.client.task_handle import SyncSession
from evsched.conformance import python_worker
from evsched.errors import EvschedError, JobDead
from evsched.jobs.job import RetryFields

_BUILT: Final[dict[str, type[Any]]] = {"retry": RetryFields, "unique": Unique}
"""Options that the client takes as objects."""


def _answer(client: SyncSession, verb: str, job: dict[str, Any], job_id: str, due: float | None) -> dict[str, Any]:
    if verb == "enqueue":
        options = {name: job[name] for name in job.keys() - {"task", "args", "kwargs"}}
        built = {name: _BUILT[name](**value) if name in _BUILT else value for name, value in options.items()}
        task = getattr(python_worker, job["task"]).using(**built)
        return {"id": client.enqueue(task, *job["args"], **job["kwargs"]).id}
    known = client.job(job_id)
    if verb == "cancel":
        known.cancel()
        return {}
    if verb == "reschedule":
        known.reschedule(due)
        return {}
    if verb == "result":
        try:
            return {"outcome": "done", "result": known.result()}
        except JobDead:
            return {"outcome": "dead"}
    return {"unsupported": f"there is no {verb}"}


def main() -> None:
    with python_worker.app.sync() as client:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                reply = _answer(
                    client, request["verb"], request.get("job", {}), request.get("id", ""), request.get("due")
                )
            except EvschedError as error:
                reply = {"error": str(error)}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
