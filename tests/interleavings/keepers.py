"""Keepers of batches, whose own code runs here: the search makes their calls."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, NamedTuple, cast

from msgspec import structs

from evsched.batches.keeper import BatchKeeper
from evsched.batches.starter import Starter
from evsched.client.client import Client
from evsched.client.operations import Nodes, Send, SendMany, Step
from evsched.config import Config
from evsched.errors import JobExists, JobLate, JobMissing, StoreRefused
from evsched.runtime.loops import Runtime
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender
from tests.interleavings.releases import QUEUE
from tests.interleavings.search import LOST, Do, Epoch, Process
from tests.interleavings.server import BASE, EPOCH, NOW

_LOOK = 8.0
"""When a keeper reads the clock, in seconds after the begin of an epoch: after its steps."""


class _Asked(NamedTuple):
    call: Call[Any]


@coroutine
def _ask(call: Call[Any]) -> Generator[_Asked, Any, Any]:
    reply = yield _Asked(call)
    if isinstance(reply, str) and reply.startswith("refused: "):
        code = reply.removeprefix("refused: ").partition(" ")[0]
        raise {"MISSING": JobMissing, "EXISTS": JobExists, "LATE": JobLate}.get(code, StoreRefused)(reply)
    return reply


class _Sender(BatchingSender):
    """Has the search make its calls; a moment of Redis's clock is one of the epoch."""

    epoch = 0

    async def send(self, call: Call[Any]) -> Any:
        if call.words[0] == "TIME":
            return BASE + self.epoch * EPOCH + _LOOK
        words = call.words
        if call.script is not None and words[2] == "":
            words = (*words[:2], NOW, *words[3:])
        return await _ask(structs.replace(call, words=words))

    async def send_all(self, calls: Any) -> list[Any]:
        return [await self.send(call) for call in calls]


class _Client(Client):
    def __init__(self, sender: _Sender, nodes: list[Any]) -> None:
        super().__init__("redis://127.0.0.1")
        self._driven = sender
        self._nodes = nodes

    async def perform(self, step: Step) -> Any:
        match step:
            case Send(call):
                return await self._driven.send(call)
            case SendMany(calls):
                return await self._driven.send_all(calls)
            case Nodes():
                return self._nodes
            case _:
                raise AssertionError(f"the keeper makes a step of another kind: {step}")


class Keeper:
    """A keeper of batches, one call after another."""

    def __init__(self, *, far: bool = False, starter: type[Starter] = Starter) -> None:
        """`far`: the home of the batch is on another server of a cluster. `starter`: its class."""
        self._sender = _Sender("redis://127.0.0.1")
        runtime = Runtime(Config(), self._sender, lambda _event: None)
        if far:
            runtime = structs.replace(runtime, part=structs.replace(runtime.part, node=cast(Any, "here")))
        self._keeper = BatchKeeper(runtime, lambda: [QUEUE])
        client = _Client(self._sender, ["there" if far else None])
        made = starter(client)
        cast(Any, made)._send_all = self._sender.send_all  # there is no event loop in which they could be sent at once
        cast(Any, self._keeper)._client, cast(Any, self._keeper)._starter = client, made
        self._step: Coroutine[Any, Any, Any] | None = None

    def begin(self, epoch: int) -> Call[Any] | None:
        """Begin a step; return its first call."""
        self._sender.epoch = epoch
        if self._step is not None:
            self._step.close()
        self._step = self._keeper.step(QUEUE)
        return self.go_on(None)

    def go_on(self, reply: Any) -> Call[Any] | None:
        """Give the step a reply; return its next call, None at its end."""
        assert self._step is not None
        try:
            return self._step.send(reply).call
        except StopIteration:
            return None


def keeper(real: Keeper) -> Process:
    """`evsched/batches/keeper.py`. When a reply is lost, it begins again, as another one does after a crash."""
    while True:
        epoch = yield Epoch()
        call, replies = real.begin(epoch), ()
        while call is not None:  # where it is follows from the replies of this step
            reply = yield Do(call, ("lost", "late", "unsent") if call.writes else ())
            if reply == LOST:
                break
            call, replies = real.go_on(reply), (*replies, reply)
            reply = None
        epoch = call = replies = reply = None
