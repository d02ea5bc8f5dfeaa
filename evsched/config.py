"""The settings: one frozen value.

A setting is a field of `Config`, which defines its name, type, default, range and help. Each can be set as
EVSCHED_<NAME> and by a flag of the services, which `environment.py` reads. Lengths are in seconds.
"""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal, NamedTuple, get_args, get_type_hints

from msgspec import Struct

from evsched import keys
from evsched.errors import ConfigError

DEFAULT_QUEUE: Final = "default"
PAYLOAD_CAP: Final = 256 * 1024

_DAY: Final = 86400.0
"""The longest length: a longer one is a mistake, and no timer accepts an infinite one."""

_SHORT: Final = 0.01
"""The shortest interval between repetitions: with a shorter one, a loop would do nothing else."""

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
LOG_LEVELS: Final = get_args(LogLevel)

Command = Literal["dispatcher", "worker", "dev", "ledger", "api"]
_SERVICES: Final[tuple[Command, ...]] = ("dispatcher", "worker", "dev")
_WORKERS: Final[tuple[Command, ...]] = ("worker", "dev")
_DISPATCHERS: Final[tuple[Command, ...]] = ("dispatcher", "dev")
_LEDGER: Final[tuple[Command, ...]] = ("ledger",)
_API: Final[tuple[Command, ...]] = ("api",)
_SERVING: Final[tuple[Command, ...]] = (*_SERVICES, *_API)
_MOVING: Final[tuple[Command, ...]] = (*_SERVICES, *_LEDGER)
_ALL: Final[tuple[Command, ...]] = (*_MOVING, *_API)


class Range(NamedTuple):
    """The least and the largest value of a setting, both allowed. Whole numbers when these are."""

    least: float
    most: float


_LENGTH: Final = Range(0.0, _DAY)
_PERIOD: Final = Range(_SHORT, _DAY)


class Setting(NamedTuple):
    """A setting's help, flags and range. Its type and its default are those of its field of `Config`."""

    help: str
    """For `--help`: a phrase with its unit, without its default."""
    commands: tuple[Command, ...]
    """The services that have a flag for it."""
    range: Range | None = None
    """None: it is not a number."""
    tuning: bool = False
    """Its default is right for nearly everybody."""
    secret: bool = False
    """It has no flag: other users of a machine can read the command lines of processes."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a process.

    Each field makes a flag of the services (cli/settings.py) and a variable, and has a line in docs/settings.md.
    """

    url: Annotated[str, Setting("The Redis to connect to", _ALL)] = "redis://localhost:6379/0"
    queues: Annotated[
        tuple[str, ...],
        Setting(
            "A queue to serve; repeat the flag for several. A worker takes NAME=WEIGHT too, such as mail=3", _SERVING
        ),
    ] = ()
    """Empty: a dispatcher and the API serve all queues, a worker those of its app, its tasks and its recurrences."""
    require_redis: Annotated[
        bool, Setting("Exit with code 1 if Redis cannot be reached at the start, instead of waiting for it", _ALL)
    ] = False
    weights: dict[str, float] = {}
    """How a worker's queues share its slots; 1 for a queue that is not named. Set with `queues`."""

    concurrency: Annotated[
        int,
        Setting(
            "How many jobs a worker process runs at the same time; for more, start more processes",
            _WORKERS,
            Range(1, 999),
        ),
    ] = 256
    """Enough that a batch of short jobs hides the round trips."""
    process_pool: Annotated[
        int, Setting("How many processes each worker process has for tasks with on='process'", _WORKERS, Range(1, 999))
    ] = os.cpu_count() or 1
    shutdown_grace: Annotated[
        float,
        Setting("Seconds that running jobs have to finish after SIGTERM; then they are handed back", _WORKERS, _LENGTH),
    ] = 10.0
    kill_grace: Annotated[
        float,
        Setting("Seconds that a job has to end after its timeout; then its worker process ends", _WORKERS, _LENGTH),
    ] = 10.0
    unknown_task_grace: Annotated[
        float,
        Setting(
            "Seconds that a job waits for a worker that knows its task; then it goes to the dead-letter set",
            _WORKERS,
            _LENGTH,
        ),
    ] = 600.0
    """Longer than most rolling deploys take."""

    batch: Annotated[
        int, Setting("How many jobs one script call moves at most", _MOVING, Range(1, 999), tuning=True)
    ] = 250
    """About 2 ms of Redis's time. See store/batch_size.py."""
    # Under 64 bytes hardly a payload has room; Redis takes no value over 512 MiB.
    payload_cap: Annotated[
        int,
        Setting(
            "The largest payload in bytes; a job with a larger one goes to the dead-letter set",
            _ALL,
            Range(64, 512 * 1024 * 1024),
            tuning=True,
        ),
    ] = PAYLOAD_CAP

    metrics_port: Annotated[
        int | None,
        Setting("Port of the pages /metrics, /healthz and /readyz; 0 chooses a free port", _ALL, Range(0, 65535)),
    ] = None
    """None: the pages are not served."""
    metrics_host: Annotated[str, Setting("Address on which the metrics port listens", _ALL)] = "127.0.0.1"
    log_level: Annotated[LogLevel, Setting("Log lines of this level and above", _ALL)] = "INFO"
    log_jobs: Annotated[bool, Setting("Log the start and the end of each job", _WORKERS)] = False
    http_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "For evsched.targets: a host to which requests may be sent: HOST, HOST:PORT, *.example.com, * or *:PORT; "
            "repeat the flag for several",
            _WORKERS,
        ),
    ] = ()
    http_networks: Annotated[
        tuple[str, ...],
        Setting(
            "For evsched.targets: a network, such as 10.1.0.0/16, to which requests may be sent although it is not "
            "public; repeat the flag for several",
            _WORKERS,
        ),
    ] = ()
    http_nat64: Annotated[
        tuple[str, ...],
        Setting(
            "For evsched.targets: a prefix, such as fd00:64::/96, whose addresses this network's NAT64 gateway "
            "translates to IPv4; the IPv4 address is judged. 64:ff9b::/96 is known; repeat the flag for several",
            _WORKERS,
        ),
    ] = ()
    http_redirects: Annotated[
        int, Setting("For evsched.targets: how many redirects of a request are followed", _WORKERS, Range(0, 20))
    ] = 0
    origin_concurrency: Annotated[
        int,
        Setting(
            "For evsched.targets: how many jobs for one origin (scheme, host and port, or a server of messages) run at "
            "the same time, over all workers of a queue; the worker that starts last sets it",
            _WORKERS,
            Range(1, 1_000_000),
        ),
    ] = 64
    """A quarter of the default concurrency: an origin that does not answer leaves slots for the others."""
    forward_destinations: Annotated[
        tuple[str, ...],
        Setting(
            "For evsched.targets: where messages may be forwarded to: stream:NAME, list:NAME, channel:NAME, or KIND"
            "@SERVER:NAME; a * in NAME is any characters; repeat the flag for several",
            _WORKERS,
        ),
    ] = ()
    scale_down_after: Annotated[
        float,
        Setting(
            "With --processes MIN:MAX: seconds without a job after which a process beyond MIN ends",
            ("worker",),
            _LENGTH,
        ),
    ] = 30.0
    """To start a process again takes 0.5 s."""

    api_host: Annotated[str, Setting("Address on which the API listens", _API)] = "127.0.0.1"
    api_port: Annotated[int, Setting("Port on which the API listens; 0 chooses a free port", _API, Range(0, 65535))] = (
        8420
    )
    api_read_tokens: Annotated[
        tuple[str, ...],
        Setting("Tokens of the callers that may read, separated by commas", _API, secret=True),
    ] = ()
    api_write_tokens: Annotated[
        tuple[str, ...],
        Setting("Tokens of the callers that may read and write, separated by commas", _API, secret=True),
    ] = ()
    api_read_tokens_file: Annotated[
        str | None, Setting("A file with tokens of callers that may read, one in each line", _API)
    ] = None
    api_write_tokens_file: Annotated[
        str | None, Setting("A file with tokens of callers that may read and write, one in each line", _API)
    ] = None
    api_open: Annotated[bool, Setting("Without any token: let every caller read and write", _API)] = False
    api_allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "With --open: a host name by which callers reach the API, besides addresses and localhost; * allows all; "
            "repeat the flag for several",
            _API,
        ),
    ] = ()
    """A page may have its own name lead to the API (DNS rebinding): the browser then takes both for one origin."""
    api_rate: Annotated[int, Setting("How many requests a second each token may make", _API, Range(1, 1_000_000))] = 200
    api_unknown_rate: Annotated[
        int, Setting("How many requests a second all callers without a valid token may make", _API, Range(1, 1_000_000))
    ] = 10
    """More than a person needs who corrects a token, and too few to guess one."""
    api_body_cap: Annotated[
        int, Setting("The largest body of a request in bytes", _API, Range(1024, 512 * 1024 * 1024), tuning=True)
    ] = 4 * 1024 * 1024
    api_jobs_cap: Annotated[
        int, Setting("How many jobs one request may schedule", _API, Range(1, 1000), tuning=True)
    ] = 1000
    """At most what one script call schedules, so that a request is done as a whole or not at all."""
    api_list_cap: Annotated[
        int, Setting("How many jobs, queues or recurrences one request may list", _API, Range(1, 100_000), tuning=True)
    ] = 1000
    api_waiting_cap: Annotated[
        int,
        Setting("How many requests may wait for a job's end; each has a connection to Redis", _API, Range(0, 10_000)),
    ] = 100

    safety_cap: Annotated[
        float,
        Setting(
            "The longest sleep of a dispatcher or a relay in seconds: how late a job may start if an event is lost",
            (*_DISPATCHERS, *_LEDGER),
            _PERIOD,
            tuning=True,
        ),
    ] = 30.0
    """The most that a lost event may delay a job."""
    probe_interval: Annotated[
        float, Setting("Seconds without traffic after which a connection is tested", _MOVING, _PERIOD, tuning=True)
    ] = 13.0
    """A half-open connection is noticed after this and `reply_timeout`, together within 15 s. It is long enough that a
    whole idle fleet sends only 0.2 commands a second."""
    reply_timeout: Annotated[
        float, Setting("Seconds to wait for the reply when a connection is tested", _MOVING, _PERIOD, tuning=True)
    ] = 1.5

    ledger_url: Annotated[str | None, Setting("The PostgreSQL database of the ledger", _LEDGER)] = None
    """None: there is no ledger."""
    critical_only: Annotated[
        int,
        Setting(
            "Schedule only rows that are at least so critical; the others wait in the table", _LEDGER, Range(0, 32767)
        ),
    ] = 0
    """After a loss of Redis: what matters first."""

    lease: Annotated[
        float,
        Setting(
            "Seconds without a heartbeat after which a worker's jobs start elsewhere", _SERVICES, _PERIOD, tuning=True
        ),
    ] = 14.0
    """The jobs of a dead worker start elsewhere within 15 s: the lease, and the janitor's step."""
    heartbeat: Annotated[
        float, Setting("Seconds between two heartbeats of a worker that holds jobs", _SERVICES, _PERIOD, tuning=True)
    ] = 5.0
    """Two may fail before the lease ends."""
    idle_lease: Annotated[
        float, Setting("The lease of a worker that holds no job, in seconds", _SERVICES, _PERIOD, tuning=True)
    ] = 135.0
    idle_heartbeat: Annotated[
        float, Setting("Seconds between two heartbeats of a worker that holds no job", _SERVICES, _PERIOD, tuning=True)
    ] = 45.0

    def __post_init__(self) -> None:
        for name in self.queues:
            keys.check_queue(name)
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if value is not None and not allowed.least <= value <= allowed.most:  # nan is in no range
                raise ConfigError(out_of_range(name, value))
        for lease, heartbeat in (("lease", "heartbeat"), ("idle_lease", "idle_heartbeat")):
            lasts, every = getattr(self, lease), getattr(self, heartbeat)
            if not lasts > 2 * every:
                text = f"{variable(lease)} is {lasts:g} s, {variable(heartbeat)} {every:g} s"
                raise ConfigError(f"{text}: a lease must outlive two heartbeats")


def _settings() -> dict[str, Setting]:
    hints = get_type_hints(Config, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


SETTINGS: Final = _settings()
"""By their names."""

RANGES: Final = {name: setting.range for name, setting in SETTINGS.items() if setting.range is not None}

LISTS: Final = tuple(name for name in SETTINGS if isinstance(getattr(Config(), name), tuple))
"""The settings that have several values: their variables have a comma between them, and their flags are repeated."""


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"EVSCHED_{name.upper()}"


def out_of_range(name: str, value: object) -> str:
    """Return the message about a number that is out of its setting's range, or about what is no number."""
    least, most = RANGES[name]
    whole = isinstance(least, int)
    bounds = f"a whole number from {least} to {most}" if whole else f"from {least:g} to {most:g} s"
    return f"{variable(name)} is {value}: {bounds}"
