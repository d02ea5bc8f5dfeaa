"""The settings: one frozen value, from the environment and from flags.

Every field can be set as EVSCHED_<NAME>. Lengths are in seconds.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

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
    process_pool: int = os.cpu_count() or 1
    """Processes for the tasks that run on processes."""
    shutdown_grace: float = 10.0
    """How long running jobs may go on after SIGTERM; what is left is then handed back."""
    kill_grace: float = 10.0
    """How long a job may go on after its timeout, if it does not yield; then its worker process ends."""

    batch: int = 250
    """Jobs that one script moves at the most: about 2 ms of Redis's time. See store/batch_size.py."""
    payload_cap: int = PAYLOAD_CAP
    """Bytes of a payload; a larger one goes to dead unread."""

    metrics_port: int | None = None
    """Where /metrics, /healthz and /readyz are; 0 = any free port, None = nowhere."""
    metrics_host: str = "127.0.0.1"
    log_jobs: bool = False
    """Log the start and the end of each job: two lines a job."""
    scale_down_after: float = 30.0
    """How long a process above the least of `--processes` has no job before it ends; to start one takes 0.5 s."""

    safety_cap: float = 30.0
    """The longest sleep of a dispatcher: what a lost event costs at the most."""
    probe_interval: float = 13.0
    """How often an idle connection is proved. With `reply_timeout` it is under the 15 s in which a half-open link is
    noticed, and seldom enough for 0.2 commands a second of a whole idle fleet."""
    reply_timeout: float = 1.5
    """How long an answer may take before the connection counts as dead."""

    lease: float = 14.0
    """Of a worker that holds jobs. When it dies they start elsewhere within 15 s: the lease, and the janitor's step."""
    heartbeat: float = 5.0
    """How often that lease is renewed: twice may fail."""
    idle_lease: float = 135.0
    idle_heartbeat: float = 45.0

    def __post_init__(self) -> None:
        for name in self.queues:
            keys.check_queue(name)
        for name in RANGES:
            value = getattr(self, name)
            if value is not None and not RANGES[name].least <= value <= RANGES[name].most:  # nan is in no range
                raise ConfigError(_out_of_range(name, value))
        for lease, heartbeat in (("lease", "heartbeat"), ("idle_lease", "idle_heartbeat")):
            lasts, every = getattr(self, lease), getattr(self, heartbeat)
            if not lasts > 2 * every:
                text = f"{variable(lease)} is {lasts:g} s, {variable(heartbeat)} {every:g} s"
                raise ConfigError(f"{text}: a lease must outlive two heartbeats")


class Range(NamedTuple):
    """From where to where a setting may be, both included; of whole numbers when they are."""

    least: float
    most: float
    hint: str = ""


_DAY: Final = 86400.0
"""The longest length: what is longer is a slip, and an infinite one no timer takes."""

_SHORT: Final = 0.01
"""The shortest of what repeats: below it a loop would be busy with nothing else."""

RANGES: Final = {
    "concurrency": Range(1, 999, "; for more, start more worker processes"),
    "process_pool": Range(1, 999, ": processes"),
    "shutdown_grace": Range(0.0, _DAY),
    "kill_grace": Range(0.0, _DAY),
    # Under 64 bytes hardly a payload has room; over 512 MiB is no value that Redis takes.
    "payload_cap": Range(64, 512 * 1024 * 1024, ": bytes"),
    "batch": Range(1, 999),
    "metrics_port": Range(0, 65535),
    "scale_down_after": Range(0.0, _DAY),
    "safety_cap": Range(_SHORT, _DAY),
    "probe_interval": Range(_SHORT, _DAY),
    "reply_timeout": Range(_SHORT, _DAY),
    "lease": Range(_SHORT, _DAY),
    "heartbeat": Range(_SHORT, _DAY),
    "idle_lease": Range(_SHORT, _DAY),
    "idle_heartbeat": Range(_SHORT, _DAY),
}
"""Every setting that is a number. They stand in docs/operations.md too."""


def variable(name: str) -> str:
    """Return the environment's name of a setting."""
    return f"EVSCHED_{name.upper()}"


def _out_of_range(name: str, value: object) -> str:
    least, most, hint = RANGES[name]
    whole = isinstance(least, int)
    bounds = f"a whole number from {least} to {most}" if whole else f"from {least:g} to {most:g} s"
    return f"{variable(name)} is {value}: {bounds}{hint}"


_AT: Final = re.compile(r"(.*) - at `\$\.(\w+).*`", re.DOTALL)
"""How msgspec says what does not fit, and where."""


def _misfit(error: msgspec.ValidationError, values: Mapping[str, Any]) -> str:
    """Return the line about a value that is not of its setting's type."""
    found = _AT.fullmatch(str(error))
    if not found:
        return f"setting: {error}"
    words, name = found.groups()
    given = f"{values.get(name)!r:.60}"
    return _out_of_range(name, given) if name in RANGES else f"{variable(name)} is {given}: {words}"


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
        raise ConfigError(_misfit(error, values)) from None


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
        named.append(f"EVSCHED_{name}" + (f" (did you mean {variable(near[0])}?)" if near else ""))
    if len(named) > _NAMED_MOST:
        named[_NAMED_MOST:] = [f"{len(named) - _NAMED_MOST} more"]
    if linked:
        named.append(f"{linked} that Kubernetes sets for a Service (enableServiceLinks: false leaves them out)")
    return f"these variables are not settings of evsched, and are ignored: {', '.join(named)}"


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        # EVSCHED_TEST_ is the tests' own.
        if name.startswith("EVSCHED_") and not name.startswith("EVSCHED_TEST_"):
            yield name.removeprefix("EVSCHED_"), value


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
        variable(name): queues if name == "queues" else str(value)
        for name in Config.__struct_fields__
        if (value := getattr(config, name)) != getattr(default, name) and name != "weights"
    }
