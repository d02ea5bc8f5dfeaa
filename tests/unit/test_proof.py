"""When a canary is wanted, and the proof that each message gives."""

from __future__ import annotations

import asyncio
import time

import pytest

from evsched import process_events
from evsched.config import Config
from evsched.dispatcher.timing import Proof
from evsched.lease import Times
from evsched.runtime.loops import Pulse, Runtime
from evsched.transport.senders import BatchingSender
from tests.support.recorder import Recorder

pytestmark = pytest.mark.anyio

NEVER = float("inf")


class Silence:
    """Records that a canary's message did not arrive in time."""

    def __init__(self) -> None:
        self.noticed = asyncio.Event()

    def __call__(self) -> None:
        self.noticed.set()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def config() -> Config:
    return Config(probe_interval=13, reply_timeout=0.01)


@pytest.fixture
def proof(config: Config, recorder: Recorder) -> Proof:
    return Proof(Runtime(config, BatchingSender(config.url), recorder))


def test_without_a_subscription_no_canary_is_wanted(proof: Proof) -> None:
    assert proof.at() == NEVER
    proof.unsent()
    assert proof.at() == NEVER


async def test_new_subscription_wants_a_canary_even_after_messages(proof: Proof) -> None:
    proof.begin(Pulse("subscription"), Silence())
    proof.received()
    assert proof.at() == 0


async def test_no_second_canary_is_wanted_while_one_is_under_way(proof: Proof) -> None:
    proof.begin(Pulse("subscription"), Silence())
    proof.expect()
    assert proof.at() == NEVER
    proof.end()


async def test_after_a_proof_the_next_canary_is_wanted_after_a_silence(proof: Proof, config: Config) -> None:
    proof.begin(Pulse("subscription"), Silence())
    proof.expect()
    before = time.monotonic()
    proof.received()
    proof.message_came()
    probe = Times(config).probe_interval
    assert before + 0.9 * probe <= proof.at() < time.monotonic() + probe, "before idle workers test their connections"


async def test_possibly_unsent_canary_is_tried_again_after_a_silence(proof: Proof, config: Config) -> None:
    silence = Silence()
    proof.begin(Pulse("subscription"), silence)
    proof.expect()
    proof.unsent()
    assert time.monotonic() < proof.at() <= time.monotonic() + Times(config).probe_interval
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5 * Times(config).reply_timeout):
            await silence.noticed.wait()


async def test_a_message_that_does_not_arrive_in_time_is_noticed(proof: Proof) -> None:
    silence = Silence()
    proof.begin(Pulse("subscription"), silence)
    proof.expect()
    await silence.noticed.wait()


async def test_a_message_without_its_event_shows_once_that_redis_sends_no_events(
    proof: Proof, recorder: Recorder
) -> None:
    proof.begin(Pulse("subscription"), Silence())
    proof.mend = "set the flags"
    proof.message_came()
    proof.message_came()
    assert proof.failed
    assert recorder.events == [process_events.NotificationsMissing(mend="set the flags")]
    proof.event_came = True
    proof.message_came()
    assert not proof.failed
    assert recorder.events[1:] == [process_events.NotificationsProven()]
