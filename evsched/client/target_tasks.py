"""The tasks of evsched.targets as programs enqueue them: their arguments and results, without their code.

Workers of evsched.targets run their jobs. The arguments are read and checked here once, before anything is sent. The
URL of a request is read strictly: it is refused if two parsers could understand it differently. A destination of a
message is written as follows, in payloads and settings:

    stream:orders            a stream of the Redis that has the jobs
    list@billing:work        a list of another Redis, whose URL is in EVSCHED_FORWARD_URL_BILLING
    exchange@rabbit:events   an exchange of an AMQP broker
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, Meta, Struct
from msgspec.structs import asdict, replace

from evsched.jobs.arguments import check
from evsched.jobs.current_job import current_job
from evsched.jobs.redaction import REDACTED
from evsched.jobs.retry import Retry
from evsched.jobs.steering import GiveUp
from evsched.jobs.tasks import Task, define

_PORTS: Final = {"http": 80, "https": 443}

_PARTS: Final = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]{1,5}))?")
_SENT: Final = re.compile(r"[!-~]+")
"""The characters of a URL: visible ASCII. A backslash is refused too, because some parsers take it for a slash."""

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Target(Struct, frozen=True):
    """Where a request goes."""

    scheme: str
    host: str
    """In lower case; an IPv6 address without its brackets."""
    port: int
    path: str
    """With the query, as it is sent."""
    hidden: bool = False
    """No message has a part of it: the job redacts it."""

    @property
    def default_port(self) -> int:
        return _PORTS[self.scheme]

    @property
    def authority(self) -> str:
        """The host as the header Host has it, with its port if that is not the default one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == self.default_port else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The URL without path and query, which may contain secrets."""
        return f"{self.scheme}://{self.authority}"

    @property
    def shown(self) -> str:
        """The origin as messages have it."""
        return REDACTED if self.hidden else self.origin

    @property
    def shown_host(self) -> str:
        """The host as messages have it."""
        return REDACTED if self.hidden else self.host


def read_url(text: str, *, hidden: bool = False) -> Target:
    """Read the URL of a payload, or of a redirect.

    Raises:
        GiveUp: it is not valid; the reason quotes nothing but the host, since a URL may contain secrets, and nothing if
            it is hidden.
    """
    if not text:
        raise GiveUp("the url is empty: write the whole URL, with http:// or https://")
    if not _SENT.fullmatch(text) or "\\" in text:
        raise GiveUp(
            "the url has a character that cannot be sent, such as a blank, a backslash or a letter outside ASCII: "
            "percent-encode it, and write a host in its ASCII form, xn--..."
        )
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise GiveUp("the url does not begin with http:// or https://: write the whole URL")
    scheme, authority, path = parts[1].lower(), parts[2], parts[3]
    if "@" in authority:
        raise GiveUp("the url has a user or a password in front of the host: pass it in the header Authorization")
    try:
        host, port = read_authority(authority)
    except ValueError as error:
        why = "a host or a port that is not valid: write HOST or HOST:PORT" if hidden else error
        raise GiveUp(f"the url has {why}") from None
    port = _PORTS[scheme] if port is None else port
    return Target(scheme, host, port, path if path[:1] == "/" else f"/{path}", hidden)


def read_authority(text: str) -> tuple[str, int | None]:
    """Read HOST or HOST:PORT.

    Raises:
        ValueError: it is not valid. The message is the end of a sentence, as after "the url has".
    """
    parts = _AUTHORITY.fullmatch(text)
    if parts is None or (parts[2] is not None and not 1 <= int(parts[2]) <= 65535):
        raise ValueError(f"a host or a port that is not valid: write HOST or HOST:PORT, not {text!r:.100}")
    return _read_host(parts[1]), None if parts[2] is None else int(parts[2])


def _read_host(text: str) -> str:
    host = text.lower()
    if host.startswith("["):
        try:
            if "%" in host:  # a zone names an interface of this machine
                raise ValueError
            return str(IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"brackets around something that is not an IPv6 address, {text!r:.100}") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # inet_aton, which many systems use, reads 127.1, 0177.0.0.1, 0x7f.0.0.1 and 2130706433 as 127.0.0.1.
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise ValueError(
                f"an IPv4 address in an unusual form, {text!r:.100}: write four decimal numbers without leading zeros"
            ) from None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        dot = ": leave out the dot at its end" if host.endswith(".") else ""
        raise ValueError(f"a host that is not valid, {text!r:.100}{dot}")
    return host


Kind = Literal["stream", "list", "channel", "queue", "exchange"]

AMQP: Final = ("queue", "exchange")
"""The kinds of an AMQP broker; the others are Redis's."""

_FORM: Final = re.compile(r"(stream|list|channel|queue|exchange)(?:@([a-z][a-z0-9_]{0,63}))?:(.+)", re.DOTALL)
_HOW: Final = (
    "write stream:NAME, list:NAME or channel:NAME, with @SERVER before the colon for another Redis, or "
    "queue@SERVER:NAME or exchange@SERVER:NAME for an AMQP broker; the kind and SERVER are in lower case"
)
_OWN: Final = "evsched:"
"""How the keys and channels of evsched begin. No message may go there: it could change jobs."""

_REDIS_OWN: Final = "__"
"""How the channels of Redis and of Sentinels begin, such as `__sentinel__:hello`. They trust each message there."""

_LONGEST: Final = 255
"""Bytes of a name in AMQP, and of whatever else it sends as a short string."""

_EXCHANGE: Final = re.compile(r"[A-Za-z0-9_.:@#,/+ -]{1,127}")
"""The names of exchanges that the client library can send."""


class Destination(Struct, frozen=True):
    """A place for messages."""

    kind: Kind
    server: str
    """The name of its server in the settings; "" = the Redis that has the jobs."""
    name: str


def read_destination(text: str) -> Destination:
    """Read a destination as payloads and settings write it.

    Raises:
        ValueError: it is not valid; the message says why.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(_HOW)
    kind, server, name = cast("Kind", found[1]), found[2] or "", found[3]
    if kind in AMQP and not server:
        raise ValueError(f"a {kind} needs the name of its broker: {kind}@SERVER:{name}")
    if kind not in AMQP and name.startswith(_OWN):
        raise ValueError(f"keys and channels that begin with {_OWN} are evsched's own")
    if kind == "channel" and name.startswith(_REDIS_OWN):
        raise ValueError(f"channels that begin with {_REDIS_OWN} are Redis's own")
    return Destination(kind, server, name)


def destination_of(text: str, *, hidden: bool = False) -> Destination:
    """Return the destination that a payload names. `hidden`: no message has a part of it.

    Raises:
        GiveUp: it is not valid.
    """
    try:
        found = read_destination(text)
    except ValueError as error:
        # It is not quoted: it may be a URL with a password.
        raise GiveUp(f"`to` is not a destination: {_HOW if hidden else error}") from None
    if found.kind == "exchange" and not _EXCHANGE.fullmatch(found.name):
        shown = REDACTED if hidden else repr(found.name)[:200]
        raise GiveUp(
            f"messages cannot be sent to exchange {shown}: its name must have 1 to 127 characters of "
            "A-Z a-z 0-9 _ . : @ # , / + - and the space"
        )
    return found


def check_options(to: Destination, options: dict[str, Any]) -> None:
    """Refuse options that the destination does not have: most likely the producer means another one.

    Raises:
        GiveUp: it has one of them, or one is too long.
    """
    known = {"most": ("stream",), "end": ("list",), "bare": ("list", "channel"), "routing_key": ("exchange",)}
    for name, kinds in known.items():
        if options[name] is not None and to.kind not in kinds:
            raise GiveUp(f"a {to.kind} has no option {name}: only {' and '.join(kinds)} has")
    if to.kind == "exchange":
        check_length("routing_key", options["routing_key"] or "")
    elif to.kind == "queue":
        check_length("the name of the queue", to.name)


def check_length(what: str, text: str) -> None:
    """Check that AMQP can send a text as a short string. `what` it is, for the reason.

    Raises:
        GiveUp: it is too long.
    """
    length = len(text.encode())
    if length > _LONGEST:
        raise GiveUp(f"{what} has {length} bytes, and AMQP allows {_LONGEST} at most")


HttpMethod = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

SECRET_NAME: Final = re.compile(r"[A-Z0-9_]+")
"""The name of a secret that requests are signed with."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~]([\t -~]*[!-~])?|")

_FRAMING: Final = (
    *("connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te", "trailer"),
    *("transfer-encoding", "upgrade"),
)
"""Headers that belong to the connection, or tell where the request ends. A second opinion of these is an attack."""

_RESERVED: Final = ("proxy-", "webhook-")
"""How the names of headers begin that belong to the connection, or to the signature."""


class TargetRequest(Struct, frozen=True):
    """A request, without the headers that evsched adds for the job."""

    method: HttpMethod
    target: Target
    headers: dict[str, str]
    """By their names in lower case."""
    content: bytes


def read_request(
    url: str,
    method: HttpMethod,
    headers: Mapping[str, str],
    body: str | None,
    json: Any = UNSET,
    hidden: Collection[str] = (),
) -> TargetRequest:
    """Make a request of a payload's arguments. `json` UNSET: no JSON body. `hidden`: the names of redacted arguments.

    Raises:
        GiveUp: they are not valid. The reason quotes no value, since any may be secret.
    """
    target, found = read_url(url, hidden="url" in hidden), _read_headers(headers, hidden="headers" in hidden)
    if body is not None and json is not UNSET:
        raise GiveUp("the request has a body and json: give one of them")
    if body is not None:
        return TargetRequest(method, target, {"content-type": "text/plain; charset=utf-8", **found}, body.encode())
    if json is not UNSET:
        return TargetRequest(method, target, {"content-type": "application/json", **found}, msgspec.json.encode(json))
    return TargetRequest(method, target, found, b"")


def _read_headers(headers: Mapping[str, str], *, hidden: bool) -> dict[str, str]:
    found = dict[str, str]()
    for n, (given, value) in enumerate(headers.items(), start=1):
        name = given.lower()
        shown = f"number {n}" if hidden else name
        if not _NAME.fullmatch(given):
            raise GiveUp(f"the name of header {n} is not valid: it may have letters, digits and !#$%&'*+-.^_`|~")
        if name in _FRAMING or name.startswith(_RESERVED):
            raise GiveUp(f"a payload may not set the header {shown}: leave it out; it is sent where it is needed")
        if name in found:
            raise GiveUp(f"the header {shown} is there twice: join its values with a comma")
        if not _VALUE.fullmatch(value):
            raise GiveUp(
                f"the value of the header {shown} is not valid: it may have visible ASCII characters, with blanks and "
                "tabs between them"
            )
        found[name] = value
    return found


R = TypeVar("R")
A = TypeVar("A", bound=Struct)

QUEUE: Final = "targets"
"""A queue of its own: workers of other apps do not know these tasks."""

TIMEOUT: Final = 30.0
"""Seconds for a request, unless its payload says otherwise."""

TIMEOUT_MOST: Final = 1800.0
"""Seconds: after these the task's own timeout ends a run."""

_WHOLE: Final = 2**53

Seconds = Annotated[float, Meta(gt=0, le=TIMEOUT_MOST)]
Most = Annotated[int, Meta(ge=1, le=_WHOLE)]


class HttpResponse(Struct, frozen=True):
    """The answer to a request, as the result of its job."""

    status: int
    headers: dict[str, str]
    """Several of one name are joined by a comma."""
    body: str
    """Decoded as UTF-8; bytes that are not are replaced by U+FFFD."""
    cut: bool
    """There was more of the body, or it broke off, or it did not end in time."""


class TargetJob(Struct, Generic[R], frozen=True):
    """The arguments of a task of evsched.targets, whose result is an R."""

    def check(self, hidden: Collection[str] = ()) -> None:
        """Refuse arguments that no worker can use. `hidden`: the names of redacted arguments.

        Raises:
            GiveUp: the reason names the argument, and quotes nothing of a redacted one.
        """


class HttpJob(TargetJob[HttpResponse | None], frozen=True):
    """The arguments of the task `evsched.http` (targets/http_task.py)."""

    url: str
    method: HttpMethod = "POST"
    headers: dict[str, str] | tuple[()] | None = None
    """PHP writes an empty object as an empty array."""
    body: str | None = None
    json: Any = UNSET
    timeout: Seconds = TIMEOUT
    """Seconds for all of it."""
    sign: str | None = None
    """The name of the secret."""
    response: bool = False
    """Return the answer."""

    def request(self, hidden: Collection[str] = ()) -> TargetRequest:
        """Return the request. Raises as `check`."""
        return read_request(self.url, self.method, self.headers or {}, self.body, self.json, hidden)

    def check(self, hidden: Collection[str] = ()) -> None:
        self.request(hidden)
        if self.sign is not None and not SECRET_NAME.fullmatch(self.sign):
            raise GiveUp("sign is not the name of a secret: it has A-Z, 0-9 and _ alone, as ORDERS")


class ForwardJob(TargetJob[None], frozen=True):
    """The arguments of the task `evsched.forward` (targets/forward.py)."""

    to: str
    message: Any
    most: Most | None = None
    """About how many entries a stream keeps."""
    end: Literal["left", "right"] | None = None
    """Where a list gets the message."""
    bare: bool | None = None
    """A list or a channel gets the message alone, without the job's id."""
    routing_key: str | None = None
    """For an exchange."""

    def check(self, hidden: Collection[str] = ()) -> None:
        check_options(destination_of(self.to, hidden="to" in hidden), asdict(self))


_ARGUMENTS: Final[dict[str, type[TargetJob[Any]]]] = {"evsched.http": HttpJob, "evsched.forward": ForwardJob}


@cache
def definition(name: str) -> Task:
    """Return one of these tasks as programs see it: with its arguments and its result, and without its code."""
    arguments = _ARGUMENTS[name]

    def refuse(args: Sequence[Any], kwargs: Mapping[str, Any], hidden: Collection[str]) -> None:
        arguments(*args, **kwargs).check(hidden)

    task = define(arguments, name=name, queue=QUEUE)
    (returns,) = get_args(vars(arguments)["__orig_bases__"][0])
    return replace(task, signature=replace(task.signature, returns=returns), check=refuse)


def is_target(name: str) -> bool:
    return name in _ARGUMENTS


def check_target(name: str, args: Sequence[Any], kwargs: dict[str, Any], payload: bytes) -> None:
    """Refuse a call of one of these tasks that no worker can do; other tasks are not looked at.

    Raises:
        BadArguments
    """
    if is_target(name):
        task = definition(name)
        check(task.signature, task.check, args, kwargs, payload)


def target_task(
    name: str,
    arguments: Callable[..., A],
    run: Callable[[A, Collection[str]], Coroutine[Any, Any, Any]],
    retry: Retry | None = None,
) -> Task:
    """Return one of these tasks for a worker. `run` gets the arguments of a job, and the names of redacted ones."""
    task = define(arguments, name=name, retry=retry)

    async def handler(*args: Any, **kwargs: Any) -> Any:
        return await run(arguments(*args, **kwargs), task.signature.hidden_parameters(current_job().redact))

    return replace(task, on="loop", handler=handler)
