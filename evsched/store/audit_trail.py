"""The calls that read an audit trail, and note acts in it that no script does; see `acts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from evsched import keys
from evsched.store.acts import ACTS_MOST, Act, ActName, AuditEntry, read_entry, stream_position
from evsched.store.queue import Queue, StreamPart
from evsched.transport.call import Call, Word, raw


class AuditTrail(Queue):
    """The calls about the acts on a queue."""

    def acts(self, before: str, since: float | None, limit: int) -> Call[StreamPart[AuditEntry | None]]:
        """Read entries of the audit trail, the latest first, back from `before`; None for one of another program."""
        first = "-" if since is None else stream_position(since)
        read = partial(read_entry, self.queue)
        return self._newest(keys.audit(self.queue), before, first, limit, read)

    def note_act(self, name: ActName, ids: Sequence[str] = (), **what: Any) -> Call[Any] | None:
        """Note an act that no script does, in a form that its readers know; None if no operator acts.

        `ids`: the jobs that it made or changed; none = it is not about jobs.
        """
        act = self._act_text(name, **what)
        if not act:
            return None
        call, _, known = act.partition(" ")
        words: list[Word] = ["call", call, "act", known, "count", len(ids) or ""]
        for job_id in ids:
            words += ("id", job_id)
        return self._call(("XADD", keys.audit(self.queue), "MAXLEN", "~", ACTS_MOST, "*", *words), raw)


class DeploymentTrail(AuditTrail):
    """The trail of the acts on no queue: who made and deleted the tokens of the console."""

    def __init__(self, act: Act | None = None) -> None:
        super().__init__("", act=act)

    @staticmethod
    def _checked(queue: str) -> str:
        return queue
