"""The settings: one frozen value, from the environment and from flags.

Every field can be set as EVSCHED_<NAME>. Lengths are in seconds.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.errors import ConfigError
from evsched.weights import join_weights, split_weights

DEFAULT_QUEUE: Final = "default"
PAYLOAD_CAP: Final = 256 * 1024

_KUBERNETES: Final = re.compile(r"(.*_)?(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""What Kubernetes makes of the name of each Service, for all containers beside it: EVSCHED_REDIS_SERVICE_HOST."""

_NAMED_MOST: Final = 8
"""Variables that are named in a warning."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process of evsched may be told."""

    url: str = "redis://localhost:6379/0"
    queues: tuple[str, ...] = ()
    require_redis: bool = False
    """A service exits when Redis is absent at its start, instead of waiting: for who starts it anew, or a test."""
    weights: dict[str, float] = {}
    """Of queues that a worker serves, when its slots are not enough for all; else 1. Set with `queues`."""

    concurrency: int = 256
    """Slots of a worker process: enough that a batch of short jobs hides the round trips."""
    pool: int = os.cpu_count() or 1
    """Processes for the tasks that run on processes."""
    grace: float = 10.0
    """What running jobs get to end in, after SIGTERM and after their timeout."""

    batch: int = 250
    """Jobs that one script moves at the most: about 2 ms of Redis's time. See batch.py."""
    payload_cap: int = PAYLOAD_CAP
    """Bytes of a payload; a larger one goes to dead unread."""

    metrics_port: int | None = None
    """Where /metrics, /healthz and /readyz are; 0 = any free port, None = nowhere."""
    metrics_host: str = "127.0.0.1"
    log_jobs: bool = False
    """Log the start and the end of each job: two lines a job."""
    idle_end: float = 30.0
    """How long a process above the least of `--processes` has no job before it ends; to start one takes 0.5 s."""

    safety_cap: float = 30.0
    """The longest sleep of a dispatcher: what a lost event costs at the most."""
    probe: float = 13.0
    """How often an idle connection is proved. With `deadline` it is under the 15 s in which a half-open link is
    noticed, and seldom enough for 0.2 commands a second of a whole idle fleet."""
    deadline: float = 1.5
    """How long an answer may take before the connection counts as dead."""

    lease: float = 14.0
    """Of a worker that holds jobs. When it dies they start elsewhere within 15 s: the lease, and the janitor's step."""
    beat: float = 5.0
    """How often that lease is renewed: twice may fail."""
    idle_lease: float = 135.0
    idle_beat: float = 45.0

    def __post_init__(self) -> None:
        for name in self.queues:
            keys.check_queue(name)
        if not 1 <= self.concurrency < 1000:
            raise ConfigError(f"concurrency is {self.concurrency}: from 1 to 999, then start more worker processes")
        if not 1 <= self.pool < 1000:
            raise ConfigError(f"pool is {self.pool}: from 1 to 999 processes")
        if not 1 <= self.batch < 1000:
            raise ConfigError(f"batch is {self.batch}: from 1 to 999")
        if self.metrics_port is not None and not 0 <= self.metrics_port < 65536:
            raise ConfigError(f"metrics_port is {self.metrics_port}: from 0 to 65535")
        if not self.lease > 2 * self.beat > 0:
            raise ConfigError(f"lease is {self.lease} s, beat {self.beat} s: a lease must outlive two beats")
        if not self.idle_lease > 2 * self.idle_beat > 0:
            raise ConfigError(f"idle_lease is {self.idle_lease} s, idle_beat {self.idle_beat} s: as for lease and beat")


SETTINGS: Final = tuple(name for name in Config.__struct_fields__ if name != "weights")
"""The fields that can be set by their names."""


def load(environment: Mapping[str, str], **flags: Any) -> Config:
    """Return the settings: flags that are not None, else the environment, else the defaults.

    A variable that is not a setting is passed over: `warning` tells of it.

    Raises:
        ConfigError: a value does not fit; the message names it.
    """
    values: dict[str, Any] = {}
    for name, value in _variables(environment):
        if _is_setting(name, value):
            values[name.lower()] = tuple(value.split(",")) if name.lower() == "queues" else value
    values.update({name: value for name, value in flags.items() if value is not None})
    if "queues" in values:
        values["queues"], values["weights"] = split_weights(values["queues"])
    try:
        return msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"setting: {error}") from None


def warning(environment: Mapping[str, str]) -> str | None:
    """Return one line about the variables EVSCHED_* that are not settings, None when there are none."""
    strange = sorted((name, value) for name, value in _variables(environment) if not _is_setting(name, value))
    if not strange:
        return None
    named, linked = list[str](), 0
    for name, value in strange:
        if _KUBERNETES.fullmatch(name) or _is_link(name, value):
            linked += 1
            continue
        near = difflib.get_close_matches(name.lower(), SETTINGS, n=1)
        named.append(f"EVSCHED_{name}" + (f" (did you mean EVSCHED_{near[0].upper()}?)" if near else ""))
    if len(named) > _NAMED_MOST:
        named[_NAMED_MOST:] = [f"{len(named) - _NAMED_MOST} more"]
    if linked:
        named.append(f"{linked} that Kubernetes sets for a Service (enableServiceLinks: false leaves them out)")
    return f"these variables are not settings of evsched, and are ignored: {', '.join(named)}"


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable, value in environment.items():
        # EVSCHED_TEST_ is the tests' own.
        if variable.startswith("EVSCHED_") and not variable.startswith("EVSCHED_TEST_"):
            yield variable.removeprefix("EVSCHED_"), value


def _is_setting(name: str, value: str) -> bool:
    return name.lower() in SETTINGS and not _is_link(name, value)


def _is_link(name: str, value: str) -> bool:
    # A Service named evsched-metrics makes EVSCHED_METRICS_PORT=tcp://10.0.0.1:9090.
    return name.endswith("PORT") and "://" in value


def as_environment(config: Config) -> dict[str, str]:
    """Return the environment from which `load` reads these settings; what is a default is left out."""
    default = Config()
    queues = ",".join(join_weights(config.queues, config.weights))
    return {
        f"EVSCHED_{name.upper()}": queues if name == "queues" else str(value)
        for name in Config.__struct_fields__
        if (value := getattr(config, name)) != getattr(default, name) and name != "weights"
    }
