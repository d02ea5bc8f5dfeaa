"""The pages about one job: its life, and a form that edits it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from evsched.client import past_acts
from evsched.client.edit import shown_arguments
from evsched.console import words
from evsched.console.page import View, Visit
from evsched.console.views.graph import find_node, nodes_beside
from evsched.console.views.jobs import PLACE_WORDS
from evsched.errors import JobMissing
from evsched.jobs.record import JobStatus
from evsched.jobs.redaction import is_member, redacted_member
from evsched.keys import check_queue
from evsched.top.stack import ask_stack

_FACTS: Final = {
    "by": "enqueued by",
    "workers": "workers of the queue",
    "parents": "jobs that it waits for",
    "ahead": "jobs ahead of it",
    "waiting": "jobs in the backlog",
    "groups": "groups in the backlog",
    "in_flight": "in flight in the queue",
    "in_flight_group": "in flight in its group",
}
"""How the page calls facts whose own names are those of the store."""

_ELSEWHERE: Final = ("place", "queue", "task", "group", "tags", "reason", "batch")
"""Facts that another part of the page shows."""

_RESUME: Final = ": resume it with `evsched resume`"


def _facts(status: JobStatus, facts: Mapping[str, str]) -> list[tuple[str, str, float | None]]:
    """Return the name of each fact, its value, and its moment if it is one."""
    names = ("created", "due", "expires", "started", "finished", "again")
    moments = {name: at for name in names if (at := getattr(status, name)) != inf}
    return [
        (_FACTS.get(name, name), value, moments.get(name)) for name, value in facts.items() if name not in _ELSEWHERE
    ]


async def _job(visit: Visit) -> dict[str, Any]:
    """Return the page of a job; if it is that of a node of a graph that has no job yet, the page of the node."""
    try:
        return await _follow(visit)
    except JobMissing:
        if (node := await find_node(visit)) is None:
            raise
        return {"redirect": node}


async def _follow(visit: Visit) -> dict[str, Any]:
    queue, job, client = check_queue(visit.get("queue")), visit.query.get("id", ""), visit.client
    status = await client.status(queue, job)
    if status is None:
        raise JobMissing(
            f"There is no job {redacted_member(job):.200} in queue {queue}: it never existed, was cancelled while it "
            "waited, or ended and its retention is over. The history may have its end."
        )
    explained = await client.explain(queue, job)
    declared = await client.run(past_acts.redactions(client.stores(queue), [job]))
    stack, asked = None, bool(visit.get("stack")) and status.place == "processing"
    if asked:
        parts = [store.queue for store in client.stores(client.shards.whole(queue))]
        stack = await ask_stack(visit.console.config.url, parts, job)
        client.commands += len(parts) + 3  # with its connections
    edited = _is_edited(visit, status)
    form = _form(status, {}) if edited else None
    return {
        "stack": stack,
        "stack_asked": asked,
        "job": replace(status, id=redacted_member(status.id, declared)),
        "key": job,
        "queue": queue,
        "beside": await nodes_beside(visit, status),
        "state": PLACE_WORDS[status.place],
        "sentence": words.rounded(explained.sentence.replace(_RESUME, "")),
        "paused": _RESUME in explained.sentence,
        "facts": _facts(status, explained.facts),
        "now": time.time(),
        "waits": status.place in ("schedule", "backlog", "ready"),
        "inline": is_member(job),
        "form": form,
        "long": edited and form is None and shown_arguments(status) is not None,
    }


def _is_edited(visit: Visit, status: JobStatus) -> bool:
    """Return whether the page of a job has the form of its arguments."""
    edited = status.place in ("schedule", "backlog", "ready", "dead") and not is_member(status.id)
    return edited and visit.visitor.may("operator")


async def _edit(visit: Visit) -> dict[str, Any]:
    """Return the form that edits a job; after one that was refused, with the text that was typed."""
    queue, job = check_queue(visit.get("queue")), visit.query.get("id", "")
    run = visit.console.acts.find(visit.get("draft"))
    draft = run.draft if run is not None and run.by == visit.visitor.name else {}
    status = await visit.client.status(queue, job)
    if status is None and not draft:
        raise JobMissing(
            f"There is no job {redacted_member(job):.200} in queue {queue}: it has ended, or was cancelled."
        )
    form = None if status is None else _form(status, draft)
    return {
        "queue": queue,
        "key": job,
        "id": redacted_member(job),
        "job": status,
        "state": None if status is None else PLACE_WORDS[status.place],
        "inline": is_member(job),
        "problem": run.title if run is not None and draft and not is_member(job) else "",
        "draft": draft,
        "form": form,
        "long": status is not None and form is None and shown_arguments(status) is not None,
    }


def _form(status: JobStatus, draft: dict[str, str]) -> dict[str, Any] | None:
    """Return the values of the fields; None if the job cannot be edited here. `sealed`: the form has no arguments.

    Each field that a page may show otherwise than the job has it comes with its own text, `shown_`: only what differs
    from that was changed.
    """
    arguments = shown_arguments(status)
    if arguments is None:
        return None
    args, kwargs = map(words.editable, arguments)
    if len(args) + len(kwargs) > words.EDITABLE_MOST:
        return None
    shown = {
        "priority": str(status.priority),
        "group": words.visible(status.group or ""),
        "tags": " ".join(status.tags),
    }
    values = {"args": args, "kwargs": kwargs, **shown, "due": ""}
    return {
        **{name: draft.get(name, value) for name, value in values.items()},
        "args_rows": min(20, 1 + draft.get("args", args).count("\n")),
        "kwargs_rows": min(20, 1 + draft.get("kwargs", kwargs).count("\n")),
        "sealed": status.sealed,
        "kept": {"version": status.version, **{f"shown_{name}": value for name, value in shown.items()}},
    }


VIEWS = (
    View("/job", "job", _job, part="jobs", every=1.0, follow=_follow),
    View("/edit", "edit", _edit, part="jobs", needs="operator"),
)
