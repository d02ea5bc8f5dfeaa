"""Signatures by the Standard Webhooks specification, with secrets that only the worker knows.

A payload names a secret; its value is in the worker's environment, as EVSCHED_SECRET_<NAME>. So no secret is in Redis,
and a payload cannot name any other variable.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from standardwebhooks import Webhook

from evsched.client.target_tasks import SECRET_NAME
from evsched.environment import SECRET
from evsched.errors import ConfigError
from evsched.jobs.current_job import CurrentJob
from evsched.jobs.steering import GiveUp

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


def signature(secrets: Secrets, name: str, job: CurrentJob, content: bytes) -> dict[str, str]:
    """Return the headers that sign a body for a receiver with that secret.

    Raises:
        GiveUp: this worker has no such secret.
    """
    webhooks = secrets.get(name)
    if not webhooks:
        known = (
            f"set {SECRET}{name} for the workers" if SECRET_NAME.fullmatch(name) else "a name has A-Z, 0-9 and _ alone"
        )
        raise GiveUp(f"the request is to be signed with a secret that this worker does not have: {known}")
    # The same for all attempts. By the specification it must not have a full stop, which ids of jobs may have.
    digest = sha256(f"{job.queue} {job.idempotency_key}".encode()).hexdigest()[:32]
    message, now = f"msg_{digest}", datetime.fromtimestamp(int(job.due + job.lateness), UTC)  # Redis's clock
    signed = " ".join(webhook.sign(message, now, content.decode()) for webhook in webhooks)
    return {"webhook-id": message, "webhook-timestamp": f"{int(now.timestamp())}", "webhook-signature": signed}
