"""The row of a job that Redis does not have: it waits for a relay, or Redis has forgotten it."""

from __future__ import annotations

from typing import Any, Final

from evsched.jobs.record import JobStatus, read_status

_SELECT: Final = """
SELECT state, reason, payload::text, extract(epoch FROM created)::float8, extract(epoch FROM finished_at)::float8
FROM evsched_job WHERE queue = %s AND id = %s
"""


def find_row(connection: Any, queue: str, job_id: str) -> JobStatus | None:
    """Return what a row of the ledger says about its job; None without a row, or if the job is done or was cancelled.

    The results of jobs are in Redis alone.
    """
    with connection.cursor() as cursor:
        cursor.execute(_SELECT, [queue, job_id])
        row = cursor.fetchone()
    if row is None or row[0] in ("done", "cancelled", "dropped"):
        return None
    state, reason, payload, created, finished = row
    found = {"payload": payload, "created": created, "reason": reason}
    if state != "open":
        found |= {"finished": finished, "outcome": state}
    fields = {name: str(value).encode() for name, value in found.items() if value}
    return read_status(queue, job_id, "schedule" if state == "open" else "dead", "", fields)
