"""The settings in a process's environment and flags: read from there, checked, and written for its children.

A worker's queues are written as `mail`, or as `mail=3`, which gets three times the slots under load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from evsched.config import FIXED, LISTS, LOG_LEVELS, RANGES, SETTINGS, Config, out_of_range, variable
from evsched.display import nearest
from evsched.errors import ConfigError

_KUBERNETES: Final = re.compile(r"(.*_)?(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""The variables that Kubernetes makes for each Service of a namespace, such as EVSCHED_REDIS_SERVICE_HOST."""

SECRET: Final = "EVSCHED_SECRET_"  # noqa: S105 - the name of a variable
"""The prefix of the variables with the secrets of evsched.targets. They are not settings: nothing shows them."""

FORWARD_URL: Final = "EVSCHED_FORWARD_URL_"
"""The prefix of the variables with the URLs of the servers to which evsched.targets forwards messages."""

OPERATOR: Final = "EVSCHED_AS"
"""The variable with the name of the operator who gives commands. It is not a setting: services do not read it."""

_BY_LEASE: Final = "it follows from the lease: evsched lease SECONDS"
_FIXED_NOW: Final = "it cannot be set any more"

_FORMER: Final = {
    "heartbeat": _BY_LEASE,
    "idle_lease": _BY_LEASE,
    "idle_heartbeat": _BY_LEASE,
    "probe_interval": _BY_LEASE,
    "reply_timeout": _BY_LEASE,
    "safety_cap": _BY_LEASE,
    "batch": _FIXED_NOW,
    "kill_grace": _FIXED_NOW,
    "scale_down_after": _FIXED_NOW,
    "unknown_rate": _FIXED_NOW,
    "body_cap": _FIXED_NOW,
    "jobs_cap": _FIXED_NOW,
    "list_cap": _FIXED_NOW,
    "waiting_cap": _FIXED_NOW,
    "http_nat64": "write --http-network nat64:PREFIX",
    "open": "write --open-host localhost",
    "allowed_host": "write --open-host NAME",
    "read_tokens_file": "write EVSCHED_API_READ_TOKENS=file:PATH",
    "write_tokens_file": "write EVSCHED_API_WRITE_TOKENS=file:PATH",
    "origin_concurrency": "write evsched limit targets --group 'origin:*' --concurrency N",
}
"""The settings that are gone, and what to do instead."""

_AT: Final = re.compile(r"(.*) - at `\$\.(\w+).*`", re.DOTALL)
"""A message of msgspec: the error, and its field."""

_WEIGHT: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_FRACTION_AFTER_COLON: Final = re.compile(r"(.+):([0-9]+\.[0-9]+)")

_LEAST_WEIGHT: Final = 0.001
_MOST_WEIGHT: Final = 1000.0
_WEIGHT_RULE: Final = f"a weight is from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}, such as 3 or 0.5"


def load(environment: Mapping[str, str], **flags: Any) -> Config:
    """Return the settings: flags that are not None, else the environment, else the defaults.

    A variable that is not a setting is ignored; `warning` names it.

    Raises:
        ConfigError: a value does not fit; the message names it.
    """
    values: dict[str, Any] = {}
    for name, value in _variables(environment):
        if _is_setting(name, value):
            values[name.lower()] = tuple(value.split(",")) if name.lower() in LISTS else value
    values |= {name: environment[variable(name)] for name in FIXED if variable(name) in environment}
    values.update({name: value for name, value in flags.items() if value is not None})
    if isinstance(level := values.get("log_level"), str):
        values["log_level"] = level.upper()
    if "queues" in values:
        values["queues"], values["weights"] = split_weights(values["queues"])
    try:
        return msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_misfit(error, values)) from None


def _misfit(error: msgspec.ValidationError, values: Mapping[str, Any]) -> str:
    """Return the message about a value that has not the type of its setting."""
    found = _AT.fullmatch(str(error))
    if not found:
        return f"setting: {error}"
    words, name = found.groups()
    given = f"{values.get(name)!r:.60}"
    if name == "log_level":
        words = f"one of {', '.join(LOG_LEVELS)}"
    elif words.startswith("Expected `bool`"):
        words = "give true or false"
    return out_of_range(name, given) if name in RANGES else f"{variable(name)} is {given}: {words}"


def warning(environment: Mapping[str, str]) -> str | None:
    """Return one line about the variables EVSCHED_* that are not settings, None without any."""
    strange = sorted((name, value) for name, value in _variables(environment) if not _is_setting(name, value))
    if not strange:
        return None
    named, linked = list[str](), 0
    for name, value in strange:
        if _KUBERNETES.fullmatch(name) or _is_link(name, value):
            linked += 1
            continue
        near = nearest(name.lower(), SETTINGS)
        hint = former(name) or (near and f"did you mean {variable(near[0])}?")
        named.append(f"EVSCHED_{name}" + (f" ({hint})" if hint else ""))
    if linked:
        named.append(f"{linked} that Kubernetes sets for a Service (enableServiceLinks: false leaves them out)")
    return f"these variables are not settings of evsched, and are ignored: {', '.join(named)}"


def former(name: str) -> str | None:
    """Return what to do in place of a setting that is gone, by its name, flag or variable without EVSCHED_."""
    name = name.strip("-").replace("-", "_").lower().removeprefix("api_")
    return _FORMER.get(name) or _FORMER.get(name.removesuffix("s"))


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        # EVSCHED_TEST_... are read by the tests.
        known = name == OPERATOR or name.startswith((SECRET, FORWARD_URL, "EVSCHED_TEST_"))
        if name.startswith("EVSCHED_") and not known:
            yield name.removeprefix("EVSCHED_"), value


def _is_setting(name: str, value: str) -> bool:
    return name.lower() in SETTINGS and not _is_link(name, value)


def _is_link(name: str, value: str) -> bool:
    # A Service named evsched-metrics makes EVSCHED_METRICS_PORT=tcp://10.0.0.1:9090.
    return name.endswith("PORT") and "://" in value


def as_environment(config: Config) -> dict[str, str]:
    """Return the environment from which `load` reads these settings. Defaults too: they win over variables."""
    values = {name: getattr(config, name) for name in (*SETTINGS, *FIXED)} | {
        "queues": tuple(join_weights(config.queues, config.weights))
    }
    return {
        variable(name): ",".join(value) if name in LISTS else str(value)
        for name, value in values.items()
        if value not in (None, ())
    }


def split_weights(queues: Iterable[str]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the names, and the weights that are not 1.

    Raises:
        ConfigError: a weight is out of bounds or stands after a colon, or a queue has no name, or is named twice.
    """
    names, weights = list[str](), dict[str, float]()
    for text in queues:
        name, equals, number = text.partition("=")
        if not name:
            raise ConfigError("a queue's name is empty: in EVSCHED_QUEUES, write one comma between two names")
        if name in names:
            raise ConfigError(f"queue {name!r} is named twice")
        names.append(name)
        if found := _FRACTION_AFTER_COLON.fullmatch(name):  # a whole number there names a shard
            raise ConfigError(f"queue {name!r}: a weight is written {found[1]}={found[2]}")
        if not equals:
            continue
        if not _WEIGHT.fullmatch(number) or not _LEAST_WEIGHT <= float(number) <= _MOST_WEIGHT:
            raise ConfigError(f"queue {text!r}: {_WEIGHT_RULE}")
        if float(number) != 1.0:
            weights[name] = float(number)
    return tuple(names), weights


def join_weights(queues: Iterable[str], weights: Mapping[str, float]) -> list[str]:
    return [f"{name}={weights[name]:f}" if name in weights else name for name in queues]
