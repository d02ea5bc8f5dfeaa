"""The page of an act: how far it is, how it ended, and what it left as it was. And the page of the users' tokens."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from evsched.console.page import View, Visit
from evsched.console.users import ROLES, read_tokens


async def _act(visit: Visit) -> dict[str, Any]:
    run = visit.console.acts.find(visit.get("id"))
    if run is None:
        raise HTTPException(
            HTTPStatus.NOT_FOUND, "This console does not know the act any more. The audit trail has what was done."
        )
    return {"run": run}


async def _tokens(visit: Visit) -> dict[str, Any]:
    found = await visit.client.send(read_tokens())
    return {"tokens": sorted(found.items()), "roles": ROLES}


VIEWS = (
    View("/act", "act", _act, part="audit", every=1.0),
    View("/tokens", "tokens", _tokens, part="tokens", needs="admin"),
)
