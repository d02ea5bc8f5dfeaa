"""The settings: one frozen value.

A setting is a field of `Config` with a `Setting`; together they define its name, type, default, range and help. Each
can be set as EVSCHED_<NAME> and by a flag of the services, which `environment.py` reads. Lengths are in seconds.
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

Command = Literal["dispatcher", "worker", "dev", "ledger", "history", "api", "console"]
_SERVICES: Final[tuple[Command, ...]] = ("dispatcher", "worker", "dev")
_WORKERS: Final[tuple[Command, ...]] = ("worker", "dev")
_LEDGER: Final[tuple[Command, ...]] = ("ledger",)
_HISTORY: Final[tuple[Command, ...]] = ("history",)
_API: Final[tuple[Command, ...]] = ("api",)
_CONSOLE: Final[tuple[Command, ...]] = ("console",)
_SERVING: Final[tuple[Command, ...]] = (*_SERVICES, *_API, *_CONSOLE)
_MOVING: Final[tuple[Command, ...]] = (*_SERVICES, *_LEDGER)
_ENQUEUING: Final[tuple[Command, ...]] = (*_MOVING, *_API, *_CONSOLE)
_ALL: Final[tuple[Command, ...]] = (*_MOVING, *_HISTORY, *_API, *_CONSOLE)


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
    secret: bool = False
    """It has no flag: other users of a machine can read the command lines of processes."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a process.

    Each field with a `Setting` makes a flag of the services (cli/options.py) and a variable, and has a line in
    docs/settings.md. The fields after them are fixed: only the tests of evsched give them other values.
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
    unknown_task_grace: Annotated[
        float,
        Setting(
            "Seconds that a job waits for a worker that knows its task; then it goes to the dead-letter set",
            (*_WORKERS, *_API),
            _LENGTH,
        ),
    ] = 600.0
    """Longer than most rolling deploys take."""
    # Under 64 bytes hardly a payload has room; Redis takes no value over 512 MiB.
    payload_cap: Annotated[
        int,
        Setting(
            "The largest payload in bytes; a job with a larger one goes to the dead-letter set",
            _ENQUEUING,
            Range(64, 512 * 1024 * 1024),
        ),
    ] = PAYLOAD_CAP

    codec: Annotated[
        str | None,
        Setting(
            "MODULE:APP of the app whose codec opens what is sealed, and seals what is enqueued", (*_API, *_CONSOLE)
        ),
    ] = None
    """None: readers see how a value is sealed. Commands read it too; workers have the codec of their own app."""

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
            "public; or nat64:PREFIX, such as nat64:fd00:64::/96, whose addresses this network's gateway translates to "
            "IPv4, which is then judged; repeat the flag for several",
            _WORKERS,
        ),
    ] = ()
    http_redirects: Annotated[
        int, Setting("For evsched.targets: how many redirects of a request are followed", _WORKERS, Range(0, 20))
    ] = 0
    forward_destinations: Annotated[
        tuple[str, ...],
        Setting(
            "For evsched.targets: where messages may be forwarded to: stream:NAME, list:NAME, channel:NAME, or KIND"
            "@SERVER:NAME; a * in NAME is any characters; repeat the flag for several",
            _WORKERS,
        ),
    ] = ()

    api_host: Annotated[str, Setting("Address on which the API listens", _API)] = "127.0.0.1"
    api_port: Annotated[int, Setting("Port on which the API listens; 0 chooses a free port", _API, Range(0, 65535))] = (
        8420
    )
    api_read_tokens: Annotated[
        tuple[str, ...],
        Setting(
            "Tokens of the callers that may read, separated by commas; file:PATH stands for those in a file, one in "
            "each line",
            _API,
            secret=True,
        ),
    ] = ()
    api_write_tokens: Annotated[
        tuple[str, ...], Setting("The same of the callers that may read and write", _API, secret=True)
    ] = ()
    api_work_tokens: Annotated[
        tuple[str, ...], Setting("The same of the workers that may fetch and end jobs", _API, secret=True)
    ] = ()
    api_open_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "Without any token: let every caller read, write and work that reaches the API by an address, as "
            "localhost, or by this name; * allows all names; repeat the flag for several",
            _API,
        ),
    ] = ()
    """A page may have its own name lead to the API (DNS rebinding): the browser then takes both for one origin."""
    api_rate: Annotated[int, Setting("How many requests a second each token may make", _API, Range(1, 1_000_000))] = 200

    api_console: Annotated[bool, Setting("Serve the console, too, below /console", _API)] = False

    console_host: Annotated[str, Setting("Address on which the console listens", _CONSOLE)] = "127.0.0.1"
    console_port: Annotated[
        int, Setting("Port on which the console listens; 0 chooses a free port", _CONSOLE, Range(0, 65535))
    ] = 8421
    console_name: Annotated[
        str | None, Setting("What the console calls this deployment, such as 'mail production'", _CONSOLE)
    ] = None
    console_zone: Annotated[str, Setting("The time zone of the console's times, such as Europe/Berlin", _CONSOLE)] = (
        "UTC"
    )
    console_proxies: Annotated[
        tuple[str, ...],
        Setting(
            "The address of a proxy that signs users in and names them in a header; repeat the flag for several",
            _CONSOLE,
        ),
    ] = ()
    """Only a request from such an address is believed: others could name any user."""
    console_header: Annotated[str, Setting("The header in which that proxy names the user", _CONSOLE)] = "Remote-User"
    console_users: Annotated[
        tuple[str, ...],
        Setting(
            "The role of a user whom that proxy names: ana=admin, *=viewer for all others; repeat the flag for several",
            _CONSOLE,
        ),
    ] = ()

    console_site: Annotated[
        str | None,
        Setting("MODULE:SITE of a function that returns your web application with the console in it", _CONSOLE),
    ] = None
    """It is called with `config=`, and what it returns has the console as `state.console`, and perhaps its path as
    `state.console_path`, for the log. None: the console alone."""

    ledger_url: Annotated[
        str | None, Setting("The PostgreSQL database of the ledger", (*_LEDGER, *_HISTORY, *_CONSOLE))
    ] = None
    """None: there is no ledger."""
    critical_only: Annotated[
        int,
        Setting(
            "Schedule only rows that are at least so critical; the others wait in the table", _LEDGER, Range(0, 32767)
        ),
    ] = 0
    """After a loss of Redis: what matters first."""

    lease: Annotated[
        float | None,
        Setting(
            "Seconds without a heartbeat after which a worker's jobs start elsewhere. The first process writes it to "
            "Redis, and all use it; change it with `evsched lease`",
            _MOVING,
            _PERIOD,
        ),
    ] = None
    """None: the lease in Redis, or else lease.DEFAULT."""

    batch: int = 250
    """How many jobs one script call moves at most: about 2 ms of Redis's time. See `BatchLimit` in store/queue.py."""
    kill_grace: float = 10.0
    """Seconds that a job has to end after its timeout; then its worker process ends."""
    scale_down_after: float = 30.0
    """Seconds without a job after which a process beyond MIN of --processes ends. To start one again takes 0.5 s."""
    origin_concurrency: int = 64
    """How many jobs for one origin (scheme, host and port, or a server of messages) run at the same time, over all
    workers of a queue, unless `evsched limit` says otherwise. A quarter of the default concurrency: an origin that does
    not answer leaves slots for the others."""
    api_unknown_rate: int = 10
    """How many requests a second all callers without a valid token may make: more than a person needs who corrects a
    token, and too few to guess one."""
    api_body_cap: int = 4 * 1024 * 1024
    """The largest body of a request in bytes."""
    api_jobs_cap: int = 1000
    """How many jobs one request may schedule: what one script call schedules, so that a request is done as a whole or
    not at all."""
    api_list_cap: int = 1000
    """How many jobs, queues or recurrences one request may list."""
    api_waiting_cap: int = 100
    """How many requests may wait for a job's end. Each has a connection to Redis."""
    api_fetching_cap: int = 1000
    """How many fetches may wait for a job. Those of one queue share a connection to Redis."""

    # The times that follow from the lease: lease.Times has their reasons. None = as they follow.
    heartbeat: float | None = None
    idle_lease: float | None = None
    idle_heartbeat: float | None = None
    safety_cap: float | None = None
    probe_interval: float | None = None
    reply_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in self.queues:
            keys.check_queue(name)
        for name in ("metrics_host", "api_host", "console_host"):
            if not getattr(self, name):  # the system would take it for all addresses
                raise ConfigError(f"{variable(name)} is empty: write the address to listen on, such as 127.0.0.1")
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if value is not None and not allowed.least <= value <= allowed.most:  # nan is in no range
                raise ConfigError(out_of_range(name, value))


def _settings() -> dict[str, Setting]:
    hints = get_type_hints(Config, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


SETTINGS: Final = _settings()
"""By their names."""

RANGES: Final = {
    **{name: setting.range for name, setting in SETTINGS.items() if setting.range is not None},
    "batch": Range(1, 999),  # a script dispatches at least one job, and less than 1,000
}
"""Those of the settings, and of one fixed field that scripts are called with."""

LISTS: Final = tuple(name for name in SETTINGS if isinstance(getattr(Config(), name), tuple))
"""The settings that have several values: their variables have a comma between them, and their flags are repeated."""

FIXED: Final = tuple(name for name in Config.__struct_fields__ if name not in (*SETTINGS, "weights"))
"""The fields that are not settings."""


def variable(name: str) -> str:
    """Return the environment variable of a field of `Config`. Those of fixed ones are for the tests of evsched."""
    return f"EVSCHED_{'' if name in SETTINGS else 'TEST_'}{name.upper()}"


def out_of_range(name: str, value: object) -> str:
    """Return the message about a value that is not a number in the range of its setting."""
    least, most = RANGES[name]
    whole = isinstance(least, int)
    bounds = f"a whole number from {least} to {most}" if whole else f"a number of seconds from {least:g} to {most:g}"
    return f"{variable(name)} is {value}: {bounds}"
