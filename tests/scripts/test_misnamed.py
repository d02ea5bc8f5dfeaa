"""The schedule of a queue whose name is not allowed: anybody can write one, and the audit reports it."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.diagnostics.audit import Audit
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender


@pytest.mark.parametrize("name", ["{} x", "{}\n\x1b[2J", "{}" + "y" * 500])
async def test_the_schedule_of_a_queue_with_an_invalid_name_is_reported(
    raw: Any, sender: BatchingSender, store: Store, name: str
) -> None:
    """No dispatcher serves it, and nothing else reports it."""
    name = name.format(store.queue)
    key = f"evsched:{{{name}}}:schedule"
    raw.zadd(key, {"a": 1})
    try:
        found = [one for one in await Audit(sender, pause=0.0).run() if one.check == "queue-name"]
        (finding,) = [one for one in found if store.queue in one.where]
        assert (finding.level, finding.where[:60]) == ("fault", key[:60])
        assert len(finding.where) < 300
        assert "A-Z a-z 0-9 . _ : @ -" in finding.mend
        assert [one for one in await Audit(sender, [store.queue], pause=0.0).run() if one.check == "queue-name"] == []
    finally:
        raw.delete(key)
