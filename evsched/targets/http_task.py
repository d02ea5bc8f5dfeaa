"""The task `evsched.http`: a job that is one HTTP request, signed by the Standard Webhooks specification.

A payload names a secret; its value is in the worker's environment, as EVSCHED_SECRET_<NAME>. So no secret is in Redis,
and a payload cannot name any other variable.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Final, cast
from urllib.parse import urljoin

from msgspec.structs import replace
from standardwebhooks import Webhook

from evsched import __version__
from evsched.client.target_tasks import SECRET_NAME, HttpJob, HttpResponse, Target, TargetRequest, read_url
from evsched.environment import SECRET
from evsched.errors import ConfigError
from evsched.jobs.current_job import CurrentJob, current_job
from evsched.jobs.redaction import REDACTED
from evsched.jobs.steering import GiveUp, RetryLater
from evsched.targets.allowed_hosts import Allowed
from evsched.targets.intake import Answer, Transfer, as_result, judge
from evsched.targets.session import Session

_KIND: Final = "whsec_"
_LEAST: Final = 24
"""Bytes of a secret, by the specification."""

Secrets = Mapping[str, tuple[Webhook, ...]]
"""By name. Several are signed with side by side, while a receiver changes from one to the next."""


def read_secrets(environment: Mapping[str, str]) -> Secrets:
    """Read the secrets of an environment.

    Raises:
        ConfigError: one is not valid; the message names the variable and quotes nothing of the secret.
    """
    return {
        name.removeprefix(SECRET): tuple(_read(name, secret) for secret in value.split())
        for name, value in environment.items()
        if name.startswith(SECRET)
    }


def _read(variable: str, secret: str) -> Webhook:
    text = secret.removeprefix(_KIND)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):  # ValueError: a character outside ASCII
        key = b""
    if len(key) < _LEAST:
        raise ConfigError(
            f"{variable} is not a secret for signatures: write {_KIND} and the base64 of {_LEAST} random bytes or "
            "more; several with a blank in between"
        )
    return Webhook(key)


def signature(secrets: Secrets, name: str, job: CurrentJob, content: bytes, *, hidden: bool = False) -> dict[str, str]:
    """Return the headers that sign a body for a receiver with that secret. `hidden`: no message has its name.

    Raises:
        GiveUp: this worker has no such secret.
    """
    webhooks = secrets.get(name)
    if not webhooks:
        known = (
            f"set {SECRET}{REDACTED if hidden else name} for the workers"
            if SECRET_NAME.fullmatch(name)
            else "a name has A-Z, 0-9 and _ alone"
        )
        raise GiveUp(f"the request is to be signed with a secret that this worker does not have: {known}")
    # The same for all attempts. By the specification it must not have a full stop, which ids of jobs may have.
    digest = sha256(f"{job.queue} {job.idempotency_key}".encode()).hexdigest()[:32]
    message, now = f"msg_{digest}", datetime.fromtimestamp(int(job.due + job.lateness), UTC)  # Redis's clock
    signed = " ".join(webhook.sign(message, now, content.decode()) for webhook in webhooks)
    return {"webhook-id": message, "webhook-timestamp": f"{int(now.timestamp())}", "webhook-signature": signed}


Sign = Callable[[bytes], dict[str, str]]
"""Returns the headers that sign a body."""

_REDIRECTS: Final = (301, 302, 303, 307, 308)

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE: Final = re.compile(r"[!-~][ -~]{0,511}")


async def http(given: HttpJob, hidden: Collection[str] = ()) -> HttpResponse | None:
    """Send a request; return the answer if the job asks for it. `hidden`: the names of redacted arguments.

    Raises:
        RetryLater: no answer came, or one that asks for another attempt.
        GiveUp: the request is not valid or not allowed, or the server refuses it.
    """
    job = current_job()
    sender = cast("Sender", job.state)
    request, signed = given.request(hidden), None
    if given.sign is not None:
        signed = partial(signature, sender.secrets, given.sign, job, hidden="sign" in hidden)
    began = time.monotonic()
    answer, target = await sender.send(request, _headers(job), signed, given.timeout)
    judge(answer, target.shown, job.due + job.lateness + time.monotonic() - began)  # by Redis's clock
    return as_result(answer) if given.response else None


def _headers(job: CurrentJob) -> dict[str, str]:
    """Return the headers that all requests of a job have, unless its payload has others."""
    headers = {
        "user-agent": f"evsched/{__version__}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "idempotency-key": job.idempotency_key,
    }
    # A client may write anything into the meta of a payload.
    for name, form in (("traceparent", _TRACEPARENT), ("tracestate", _TRACESTATE)):
        value = job.meta.get(name)
        if isinstance(value, str) and form.fullmatch(value):
            headers[name] = value
    return headers


class _NotInTime(Exception):
    """The time of a request is over. The message names the missing library."""


class Sender:
    """Sends the requests of one worker, as far as the settings allow them."""

    def __init__(self, allowed: Allowed, secrets: Secrets, session: Session) -> None:
        self.secrets = secrets
        self._allowed = allowed
        self._session = session

    async def send(
        self, request: TargetRequest, headers: dict[str, str], signed: Sign | None, timeout: float
    ) -> tuple[Answer, Target]:
        """Send a request, follow redirects if that is allowed, and return the last answer, and who gave it.

        `headers`: for each server. `signed`: makes the signature, if there is one, for the server that the payload
        names. `timeout`: seconds for all of it. An answer whose head has arrived by then is returned as it is.

        Raises:
            RetryLater, GiveUp: as `http` does.
        """
        named, followed, redirects = request.target.origin, 0, ""
        until = asyncio.get_running_loop().time() + timeout
        while True:
            target = request.target
            own = signed(request.content) if signed and target.origin == named else {}
            try:
                answer = await self._send(request, {**headers, **own, **request.headers}, until)
            except GiveUp as error:
                raise GiveUp(f"{redirects}{error}") from None
            except _NotInTime as error:
                raise RetryLater(None, f"{redirects}{error} within {timeout:g} s") from None
            location = answer.header("location")
            if answer.status not in _REDIRECTS or not location:
                return answer, target
            request = redirected(request, answer.status, location)
            redirects = f"{target.shown} redirects to {request.target.shown}"
            if followed == self._allowed.redirects:
                raise GiveUp(_too_far(followed, redirects))
            followed, redirects = followed + 1, f"{redirects}: "

    async def _send(self, request: TargetRequest, headers: dict[str, str], until: float) -> Answer:
        """Send one request. `until`: by the clock of the event loop.

        Raises:
            _NotInTime: no head of an answer has arrived by then.
            RetryLater, GiveUp: as `http` does.
        """
        target = request.target
        if not self._allowed.allows(target):
            host = REDACTED if target.hidden else target.authority
            raise GiveUp(
                f"requests to {target.shown} are not allowed: to send them, start all workers of the queue with "
                f"--http-host {host}, then run evsched dead revive"
            )
        if asyncio.get_running_loop().time() >= until:  # a redirect took all of it
            raise _NotInTime("no time was left for it")
        transfer = Transfer(target)
        try:
            async with asyncio.timeout_at(until):
                return await self._session.send(request, headers, transfer)
        except TimeoutError:
            if (arrived := transfer.arrived()) is None:
                raise _NotInTime(transfer.missing) from None
            return arrived


def _too_far(followed: int, redirects: str) -> str:
    """Return the reason for a redirect that is not followed."""
    if followed:
        return (
            f"{redirects}, after {followed} redirects: name the final URL in the payload, or start the worker with a "
            "larger number for --http-redirects"
        )
    return f"{redirects}: name the final URL in the payload, or start the worker with --http-redirects"


def redirected(request: TargetRequest, status: int, location: str) -> TargetRequest:
    """Return the request that follows a redirect (RFC 9110, 15.4).

    To another origin, no header of the payload is sent but `Content-Type`: any of them may be a credential.

    Raises:
        GiveUp: the location is not valid, or would send the request over plain HTTP instead of TLS.
    """
    before = request.target
    try:
        target = read_url(urljoin(f"{before.origin}{before.path}", location), hidden=before.hidden)
    except GiveUp as error:
        raise GiveUp(f"{before.shown} redirects to a URL that is not valid: {error}") from None
    except ValueError as error:
        why = "" if before.hidden else f": {error}"
        raise GiveUp(f"{before.shown} redirects to a URL that is not valid{why}") from None
    if before.scheme == "https" and target.scheme == "http":
        raise GiveUp(f"{before.shown} redirects to {target.shown}, without TLS: name the final URL in the payload")
    headers = request.headers
    if target.origin != before.origin:
        headers = {name: value for name, value in headers.items() if name == "content-type"}
    to_get = request.method != "HEAD" and (status == 303 or (status in (301, 302) and request.method == "POST"))
    if to_get:
        kept = {name: value for name, value in headers.items() if not name.startswith("content-")}
        return TargetRequest("GET", target, kept, b"")
    return replace(request, target=target, headers=headers)
