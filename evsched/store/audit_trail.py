"""The calls that read an audit trail, and note acts in it that no script does; see `acts.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from evsched import keys
from evsched.store.acts import ACTS_MOST, Act, ActName, AuditEntry, read_entry, stream_position
from evsched.store.queue import Queue, StreamPart
from evsched.transport.call import Call, Word, raw, text


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


def read_trails(last: Mapping[str, str], limit: int) -> Call[dict[str, tuple[str, list[AuditEntry | None]]]]:
    """Read at most `limit` entries of the trail of each of these queues, the oldest first, and the id of the last one.

    `last`: queue, "" = none -> the id of the entry behind which to read. In a cluster, the queues are of one slot.
    """
    streams = {keys.audit(queue).encode(): queue for queue in last}

    def read(reply: list[Any] | None) -> dict[str, tuple[str, list[AuditEntry | None]]]:
        return {
            streams[stream]: (text(found[-1][0]), [read_entry(streams[stream], *one) for one in found])
            for stream, found in reply or ()
        }

    return Call(("XREAD", "COUNT", limit, "STREAMS", *streams, *last.values()), read, near=next(iter(streams)))
