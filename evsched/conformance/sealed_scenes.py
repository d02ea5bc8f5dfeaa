"""The scenes for workers that open sealed arguments and seal results (docs/encryption.md)."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

from evsched.codec.codec import Codec
from evsched.codec.rekey import Rekey
from evsched.conformance.kit import Scene, adding_to
from evsched.conformance.stage import QUEUE, Stage, expect, require
from evsched.jobs.job import RetryFields, encode
from evsched.jobs.sealed import MARK, About, PayloadCodec, Sealed, sealed_in


class SealedStage(Stage):
    """A stage whose client encrypts with the key `one`. The worker has it too, and encrypts with the key `two`."""

    def __init__(self, command: str, lease: float) -> None:
        self._keys = {name: os.urandom(32) for name in ("one", "two")}
        named = {name: b64encode(key).decode() for name, key in self._keys.items()}
        super().__init__(command, lease, CONFORMANCE_KEYS=json.dumps(named), CONFORMANCE_KEY="two")
        self.codec = Codec(self._keys, write="one")

    def __enter__(self) -> Self:
        super().__enter__()
        self.client.client.with_codec(self.codec)
        return self

    def write_sealed(self, codec: PayloadCodec, job_id: str, args: list[Any]) -> None:
        """Write a job for the task `call`, with arguments that a codec has sealed for this id."""
        sealed = codec.seal(About("arguments", "call", job_id), encode([args, {}]))
        self.write(job_id, {"task": "call", "sealed": sealed, "retention": 3600})

    def rekey(self) -> None:
        """Seal with the key `two` what the key `one` has sealed."""
        work = Rekey(self.client.stores(QUEUE), Codec(self._keys, write="two"))
        while self.client.run(work.step()):
            pass
        require(work.result.done, "there was nothing to seal again")


SEALED_SCENES: Final = list[Scene[SealedStage]]()

_scene: Final = adding_to(SEALED_SCENES)


def _expect_call(stage: SealedStage, job_id: str, *args: Any, **kwargs: Any) -> None:
    status = stage.ended(job_id)
    expect((status.outcome, status.result), ("done", {"args": [*args], "kwargs": kwargs}), "outcome and result")


@_scene("encrypted arguments reach the handler, and its result is encrypted with CONFORMANCE_KEY, for this job")
def sealed(stage: SealedStage) -> None:
    job_id = stage.enqueue("call", "ä€", None, named={"x": {"y": 1}})
    _expect_call(stage, job_id, "ä€", None, x={"y": 1})
    found = sealed_in(json.loads(stage.raw(job_id, "result")))
    require(found, "the result in Redis is not sealed")
    expect((found and found.key, found and found.of), ("two", job_id), "the key of the result, and its job")


@_scene("a result of null stays null")
def sealed_null(stage: SealedStage) -> None:
    job_id = stage.enqueue("echo", None)
    stage.ended(job_id)
    expect(stage.raw(job_id, "result"), b"null", "the result in Redis")


@_scene("compressed arguments of 200 KB and a result of that length are read back, encrypted or not")
def sealed_long(stage: SealedStage) -> None:
    text = "0123456789" * 20_000
    expect(stage.result("echo", text), text, "the result")
    stage.write_sealed(Codec(), "compressed-1", [text])
    _expect_call(stage, "compressed-1", text)


@_scene("plain arguments run too")
def plain(stage: SealedStage) -> None:
    stage.write("plain-1", {"task": "call", "args": [1], "retention": 3600})
    _expect_call(stage, "plain-1", 1)


@_scene("arguments that name no job are opened, and those beside them come after them")
def sealed_beside(stage: SealedStage) -> None:
    text = encode([["first"], {"a": 1}])
    found = stage.codec.seal(About("arguments", "call"), text)
    passed = {MARK: stage.codec.seal(About("result", of="other"), b'"passed on"')}
    payload = {"task": "call", "sealed": found, "args": [passed, [passed]], "kwargs": {"b": 2}, "retention": 3600}
    stage.write("beside-1", payload)
    _expect_call(stage, "beside-1", "first", "passed on", ["passed on"], a=1, b=2)


@_scene("a job with sealed arguments runs again after a failure, also if its key was changed meanwhile")
def sealed_retry(stage: SealedStage) -> None:
    job_id = stage.enqueue("fail", 1, "no", retry=RetryFields(interval=2, jitter=0))
    stage.until(lambda: (found := stage.status(job_id)) and found.place == "schedule", "its first attempt fails")
    stage.rekey()
    expect(_key_of(stage, job_id), "two", "the key of its arguments")
    expect(stage.ended(job_id).result, 2, "the attempt that is done")


@_scene("the key may be changed during a run")
def sealed_rekeyed(stage: SealedStage) -> None:
    job_id = stage.enqueue("work", 1)
    stage.begun(job_id)
    stage.rekey()
    expect(stage.ended(job_id).outcome, "done", "the outcome")


def _key_of(stage: SealedStage, job_id: str) -> str:
    return msgspec.convert(json.loads(stage.raw(job_id, "payload"))["sealed"], Sealed).key


def _unreadable(stage: SealedStage, job_id: str, *words: str) -> None:
    """Expect that a job is dead in its first attempt, which may not have begun, and that the worker goes on."""
    attempt = stage.dead(job_id, *words).attempt
    require(attempt <= 1, f"{job_id} is dead after {attempt} attempts, not in its first")
    expect(stage.result("echo", 1), 1, "the result of the next job")


@_scene("a job whose key the worker does not have is dead in its first attempt, and the reason names the key")
def sealed_unknown_key(stage: SealedStage) -> None:
    stage.write_sealed(Codec({"three": os.urandom(32)}), "unknown-key-1", [1])
    _unreadable(stage, "unknown-key-1", "three")


@_scene("a job whose key is another one of the same id is dead in its first attempt, and the reason names the key")
def sealed_wrong_key(stage: SealedStage) -> None:
    stage.write_sealed(Codec({"one": os.urandom(32)}), "wrong-key-1", [1])
    _unreadable(stage, "wrong-key-1", "one")


@_scene("arguments that were changed, or are those of another job or another task, make the job dead")
def sealed_exchanged(stage: SealedStage) -> None:
    own = stage.codec.seal(About("arguments", "call", "changed"), b"[[1],{}]")
    for job_id, task, found in (
        ("changed", "call", replace(own, data=own.data[:-1] + bytes([own.data[-1] ^ 1]))),
        ("of-another-job", "call", own),
        ("as-if-of-this-job", "call", replace(own, of="as-if-of-this-job")),
        ("of-another-task", "echo", stage.codec.seal(About("arguments", "call", "of-another-task"), b"[[1],{}]")),
        ("cut-short", "call", Sealed(b"short", key="one")),
        ("not-zlib", "call", Sealed(b"not zlib", zip="zlib")),
    ):
        stage.write(job_id, {"task": task, "sealed": found})
        _unreadable(stage, job_id)


@_scene("arguments that are not a list and an object once opened, or not JSON, make the job dead")
def sealed_invalid(stage: SealedStage) -> None:
    for job_id, text in (
        ("no-pair", b'{"a":1}'), ("one-part", b"[[1]]"), ("three-parts", b"[[1],{},3]"), ("not-utf-8", b'[["\xe4"],{}]')
    ):  # fmt: skip
        stage.write(job_id, {"task": "call", "sealed": stage.codec.seal(About("arguments", "call", job_id), text)})
        _unreadable(stage, job_id)


@_scene("arguments beside those sealed for the job, or beside one of the same name, make the job dead")
def sealed_added(stage: SealedStage) -> None:
    text = b'[[1],{"a":1}]'
    for job_id, of, beside in (
        ("added", "added", {"args": [None]}),
        ("added-by-name", "added-by-name", {"kwargs": {"b": None}}),
        ("put-in-place", "", {"kwargs": {"a": None}}),
    ):
        stage.write(
            job_id, {"task": "call", "sealed": stage.codec.seal(About("arguments", "call", of), text), **beside}
        )
        _unreadable(stage, job_id)
