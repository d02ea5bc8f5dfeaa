"""How a client uses the codec of its app: it seals the jobs that it enqueues, and opens the values that it reads.

`UseCodec` is the step of an operation for that. A client without a codec seals nothing, and its readers get the text
that says how a value is sealed (`jobs/sealed.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from evsched.client.operations import Operation, UseCodec, send
from evsched.errors import CannotOpen, ConfigError
from evsched.jobs.job import decode, decode_payload, encode
from evsched.jobs.record import JobStatus
from evsched.jobs.redaction import redacted
from evsched.jobs.sealed import (
    About,
    PayloadCodec,
    has_seals,
    masked,
    open_payload,
    open_value,
    seal_fixed,
    seal_payload,
    sealed_in,
)
from evsched.jobs.tasks import RESERVED
from evsched.store.client_calls import New, Original
from evsched.store.store import Store

_MALFORMED: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


async def seal(codec: PayloadCodec, payload: bytes, job_id: str, payload_cap: int) -> bytes:
    """Seal the arguments of a payload, for a job; "" = for any.

    Those of evsched.targets stay as they are: their workers have no codec, and scripts read for which host they are.

    Raises:
        ConfigError: the payload is too large.
    """
    task = decode(payload)["task"]
    if str(task).startswith(RESERVED):
        return payload
    text = await seal_payload(codec, payload, job_id)
    if len(text) > payload_cap:
        raise ConfigError(
            f"task {task}: the payload has {len(text)} bytes once it is sealed, more than {payload_cap}: give the "
            "codec put and get, or raise EVSCHED_PAYLOAD_CAP for dispatchers and for the programs that enqueue"
        )
    return text


async def seal_jobs(codec: PayloadCodec, jobs: Sequence[New], payload_cap: int) -> list[New]:
    """Seal the arguments of jobs, each for its own id. Raises as `seal`."""
    return [replace(job, payload=await seal(codec, job.payload, job.id, payload_cap)) for job in jobs]


async def seal_node(codec: PayloadCodec, payload: dict[str, Any], payload_cap: int) -> dict[str, Any]:
    """Seal the arguments of a node of a graph, to which results are added later. Raises as `seal`."""
    return {"args": [], "kwargs": {}} | decode(await seal(codec, encode(payload), "", payload_cap))


async def seal_recurring(codec: PayloadCodec, payload: bytes) -> bytes:
    """Seal the arguments of a recurrence, for all of its jobs: the same ones are always sealed in the same way."""
    return payload if str(decode(payload)["task"]).startswith(RESERVED) else seal_fixed(codec, payload)


def opened(store: Store, status: JobStatus) -> Operation[JobStatus]:
    """Return a status in which those values are opened that this client can open."""
    original = (yield from send(store.original(status.id))) if status.sealed else None
    if original is None:
        return status
    found = yield UseCodec(lambda codec: _opened_fields(codec, original))
    return status if found is None else replace(status, **found)


async def _opened_fields(codec: PayloadCodec, original: Original) -> dict[str, Any]:
    job_id, found = original.status.id, dict[str, Any](sealed=False)
    payload, result = original.fields.get("payload"), original.fields.get("result")
    try:
        if payload is not None:
            found["payload"] = redacted(decode(await _opened(codec, payload, job_id)), original.declared)
        if result is not None and (sealed := sealed_in(decode(result))) is not None:
            found["result"] = decode(await open_value(codec, About("result", of=job_id), sealed))
    except (CannotOpen, *_MALFORMED):
        found["sealed"] = True
    return found


def shown_payload(payload: bytes) -> Operation[Any]:
    """Return the payload of a recurrence for a reader: opened if this client can, else it says how it is sealed.

    Raises:
        msgspec.MsgspecError, RecursionError, UnicodeDecodeError: it is not JSON.
    """
    value = decode(payload)
    if not has_seals(value):
        return value
    try:
        text = yield UseCodec(lambda codec: _opened(codec, payload, ""))
    except CannotOpen:
        text = None
    return masked(value) if text is None else decode(text)


def opened_for_edit(original: Original) -> Operation[Original]:
    """Return a job whose arguments are to become others with its payload opened, if it is sealed.

    Raises:
        ConfigError: this client cannot open it.
    """
    payload, job_id = original.fields.get("payload", b""), original.status.id
    if not original.status.sealed:
        return original
    text = yield from _reopen(payload, job_id)
    status = replace(original.status, payload=redacted(decode(text), original.declared))
    return Original(status, {**original.fields, "payload": text}, original.declared)


async def _opened(codec: PayloadCodec, payload: bytes, job_id: str) -> bytes:
    """Open a payload; one that is malformed cannot be opened either."""
    try:
        return await open_payload(codec, payload, job_id)
    except _MALFORMED as error:
        raise CannotOpen(f"they are not valid: {error}") from None


def seal_again(payload: bytes, job_id: str, payload_cap: int) -> Operation[bytes]:
    """Return a payload that was opened, sealed for a job. Raises as `seal`."""
    return (yield UseCodec(lambda codec: seal(codec, payload, job_id, payload_cap)))


def copied_for(payload: bytes, job_id: str, copy: str, payload_cap: int) -> Operation[bytes]:
    """Return the payload of a job for a copy with another id: arguments that were sealed for the job are sealed again.

    Raises:
        ConfigError: this client cannot open them.
    """
    try:
        sealed = decode_payload(payload).sealed
    except _MALFORMED:
        sealed = None  # a worker refuses it, as it did the first
    if sealed is None or not sealed.of:
        return payload
    text = yield from _reopen(payload, job_id)
    return (yield from seal_again(text, copy, payload_cap))


def _reopen(payload: bytes, job_id: str) -> Operation[bytes]:
    try:
        text = yield UseCodec(lambda codec: _opened(codec, payload, job_id))
    except CannotOpen as error:
        raise ConfigError(f"the arguments of {job_id} cannot be read: {error}") from None
    if text is None:
        raise ConfigError(
            f"the arguments of {job_id} are sealed, and this program has no codec: a command, the console and the API "
            'need EVSCHED_CODEC, those of a Django site OPTIONS["codec"], and a program an App with a codec'
        )
    return text
