"""An app with a codec, and a task for each kind of handler."""

from __future__ import annotations

from typing import Any

from evsched import App, Retry, current_job
from evsched.codec import Codec
from evsched.steps import step, wait_for

OLD, NEW, THIRD = (bytes([n]) * 32 for n in (1, 2, 3))
SECRET = "DE89370400440532013000"
"""An argument that must be nowhere in Redis."""

app = App(codec=Codec({"old": OLD}))

AGAIN = Retry(attempts=3, interval=0.01, jitter=0)


@app.task(retry=AGAIN)
async def pay(account: str, cents: int = 1) -> dict[str, Any]:
    return {"paid": account, "cents": cents}


@app.task(retry=AGAIN)
def pay_in_thread(account: str, cents: int = 1) -> dict[str, Any]:
    return {"paid": account, "cents": cents}


@app.task(retry=AGAIN, on="process")
def pay_in_process(account: str, cents: int = 1) -> dict[str, Any]:
    return {"paid": account, "cents": cents}


def _look_up(account: str) -> list[str]:
    return [account]


@app.task(retry=AGAIN)
async def pay_in_steps(account: str) -> list[Any]:
    """Fail once, behind a step."""
    found = await step("look up", _look_up, account)
    if current_job().attempt == 1:
        raise RuntimeError("once more")
    return [found, await wait_for("approved", 60)]


@app.task(retry=AGAIN, on="process")
def pay_in_steps_in_process(account: str) -> list[Any]:
    """Fail once, behind a step."""
    found = step.sync("look up", _look_up, account)
    if current_job().attempt == 1:
        raise RuntimeError("once more")
    return [found, wait_for.sync("approved", 60)]
