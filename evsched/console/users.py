"""The users of the console: their tokens and sessions in Redis, their roles, and the proof that a form is theirs.

A token is a random text of 256 bits, of which Redis has the digest. Who signs in with it gets a session, a random text
as well, in a cookie that scripts cannot read; Redis has its digest, until the user signs out or 12 hours have passed.
So a cookie proves nothing by itself: a session that was ended is dead in every console at once.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from evsched import keys
from evsched.client.client import Client
from evsched.client.operations import Operation, send
from evsched.config import Config, variable
from evsched.errors import ConfigError, StoreError
from evsched.store.acts import NAME_MOST, Act, Operator
from evsched.store.audit_trail import DeploymentTrail
from evsched.transport.call import Call, raw
from evsched.web_origins import is_known_host, is_other_origin

Role = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Each may do what those before it may: a viewer reads, an operator acts, an admin makes tokens as well."""

COOKIE: Final = "evsched_session"

LENGTH: Final = 12 * 3600
"""Seconds of a session."""

_LOCAL: Final = "local"
"""The name of the user of a console without tokens, who is on its own machine."""

_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""The name of a header (RFC 9110)."""

_OF_PROXIES: Final = ("x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via")
"""Headers with which proxies mark requests: the users of a proxy on this machine may be anywhere."""


class Visitor(Struct, frozen=True):
    """Who asks for a page, and the session; without tokens or behind a proxy there is none."""

    name: str
    role: Role
    session: str = ""

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


FindVisitor = Callable[[HTTPConnection], Awaitable[Visitor | None]]
"""Returns who sends a request; None if the user is not signed in, or has no role here."""


class Token(Struct, frozen=True):
    """A token, as Redis has it. `made`: Unix seconds."""

    digest: str
    role: Role
    made: float
    by: str


class _Session(Struct, frozen=True):
    name: str
    token: str
    """The digest of the token: if that is deleted or replaced, the session has ended."""


def digest(secret: str) -> str:
    return sha256(secret.encode(errors="backslashreplace")).hexdigest()


def read_tokens() -> Call[dict[str, Token]]:
    """Read all tokens by the names of their users. Entries that are not valid are left out."""

    def read(reply: list[bytes]) -> dict[str, Token]:
        found = dict[str, Token]()
        for name, value in zip(reply[::2], reply[1::2], strict=True):
            try:
                found[name.decode()] = msgspec.json.decode(value, type=Token)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
        return found

    return Call(("HGETALL", keys.CONSOLE_TOKENS), read, near=keys.CONSOLE_TOKENS)


def make_token(name: str, role: Role, now: float, by: Operator) -> Operation[str]:
    """Make the token of a user, and return it. A token that the user had is not valid any more.

    The entry in the audit trail is written first, so there is no token without one.

    Raises:
        ConfigError: the name or the role is not valid.
    """
    name = name.strip()
    if not 1 <= len(name) <= NAME_MOST or not name.isprintable():
        raise ConfigError(f"a user's name is 1 to {NAME_MOST} characters that can be printed, and not {name!r:.60}")
    if role not in ROLES:
        raise ConfigError(f"{role!r:.60} is not a role: write one of {', '.join(ROLES)}")
    secret = secrets.token_urlsafe(32)
    token = msgspec.json.encode(Token(digest(secret), role, now, by.who))
    yield from _note(by, "make-token", user=name, role=role)
    yield from send(Call(("HSET", keys.CONSOLE_TOKENS, name, token), raw, near=keys.CONSOLE_TOKENS))
    return secret


def remove_token(name: str, by: Operator) -> Operation[str | None]:
    """Delete the token of a user, and end the sessions; return a sentence that says so, None if there was none.

    A token is deleted even if the audit trail cannot be written. The sentence says that too.
    """
    removed = yield from send(Call(("HDEL", keys.CONSOLE_TOKENS, name), int, near=keys.CONSOLE_TOKENS))
    if not removed:
        return None
    try:
        yield from _note(by, "remove-token", user=name)
    except StoreError as error:
        return f"{name} has no token any more. The audit trail could not be written: {error}"
    return f"{name} has no token any more"


def _note(by: Operator, act: Literal["make-token", "remove-token"], **what: str) -> Operation[None]:
    note = DeploymentTrail(Act(by)).note_act(act, **what)
    assert note is not None
    yield from send(note)


class Refused(HTTPException):
    """The request is not allowed; the page says why."""


class Users:
    """Decides who a visitor is. Any console of the same Redis decides alike.

    `open_without_tokens`: as long as there is no token, everybody on this machine is an admin. `find_visitor`: the
    login of the application in which the console is mounted; None = it has none.

    Raises:
        ConfigError: a setting is not valid.
    """

    def __init__(
        self, config: Config, client: Client, *, open_without_tokens: bool, find_visitor: FindVisitor | None = None
    ) -> None:
        self._client = client
        self._open = open_without_tokens
        self._find_visitor = find_visitor
        self._proxies = {_address(text) for text in config.console_proxies}
        self._header = config.console_header
        if not _HEADER.fullmatch(self._header):
            raise ConfigError(
                f"{variable('console_header')} is {self._header!r:.60}: write the name of a header, such as Remote-User"
            )
        self._roles = dict[str, Role]()
        for text in config.console_users:
            name, equals, role = text.rpartition("=")
            if not equals or not name or role not in ROLES:
                raise ConfigError(f"{variable('console_users')}: {text!r} is not NAME=ROLE, such as ana=operator")
            self._roles[name] = role
        if self._roles and not self._proxies:
            raise ConfigError(
                f"{variable('console_users')} is about users whom a proxy names: give {variable('console_proxies')} "
                "too, or make tokens with `evsched console token`"
            )
        if self._proxies and find_visitor is not None:
            raise ConfigError(
                f"{variable('console_proxies')}: a proxy signs users in, and the application does: leave one out"
            )
        if self._proxies and not self._roles:
            self._roles["*"] = "viewer"
        self._secret = b""

    @property
    def elsewhere(self) -> bool:
        """Whether users sign in elsewhere, at a proxy or in the application: tokens and sessions are not used then."""
        return bool(self._proxies) or self._find_visitor is not None

    async def find(self, request: HTTPConnection) -> Visitor | None:
        """Return who sends a request; None if it is not known, so that the user must sign in.

        Raises:
            Refused: the request does not come from where it must.
            StoreDown, StoreRefused
        """
        if self._proxies:
            return self._named_by_proxy(request)
        if self._find_visitor is not None:
            return await self._named_by_application(request, self._find_visitor)
        session = request.cookies.get(COOKIE, "")
        found = await self._of_session(session) if session else None
        if found is None and self._open and not await self.has_tokens():
            _refuse_other_machines(request)
            _refuse_other_hosts(request)
            return Visitor(_LOCAL, "admin")
        return found

    async def _of_session(self, session: str) -> Visitor | None:
        key = keys.CONSOLE_SESSION + digest(session)
        stored: bytes | None = await self._client.send(Call(("GET", key), raw, near=key))
        if stored is None:
            return None
        try:
            known = msgspec.json.decode(stored, type=_Session)
        except msgspec.MsgspecError:
            return None
        token = (await self._client.send(read_tokens())).get(known.name)
        if token is None or not hmac.compare_digest(token.digest, known.token):
            return None
        return Visitor(known.name, token.role, session)

    async def has_tokens(self) -> bool:
        """Return whether there are tokens. One that is not valid counts: it must not open the console to everybody."""
        return bool(await self._client.send(Call(("HLEN", keys.CONSOLE_TOKENS), int, near=keys.CONSOLE_TOKENS)))

    def _named_by_proxy(self, request: HTTPConnection) -> Visitor | None:
        """Return the user whom the proxy names.

        Raises:
            Refused: the request does not come from a proxy, or this user has no role.
        """
        host = _address_of(request)
        if host not in self._proxies:
            raise Refused(
                HTTPStatus.FORBIDDEN, f"requests come from the proxy that signs users in, and not from {host}"
            )
        names = request.headers.getlist(self._header)
        if len(names) > 1:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"the request has the header {self._header} {len(names)} times, so it names {len(names)} users: have "
                "the proxy replace the header that a browser sends",
            )
        if not names or not names[0].strip():
            raise Refused(HTTPStatus.FORBIDDEN, f"the proxy names no user in the header {self._header}")
        name = _utf8(names[0].strip())
        _check_name(name)
        role = self._roles.get(name) or self._roles.get("*")
        if role is None:
            raise Refused(HTTPStatus.FORBIDDEN, f"{name} has no role here: name it in {variable('console_users')}")
        return Visitor(name, role)

    @staticmethod
    async def _named_by_application(request: HTTPConnection, find_visitor: FindVisitor) -> Visitor:
        """Return the user whom the application names.

        Raises:
            Refused: it names none, or by a name that is not valid.
        """
        found = await find_visitor(request)
        if found is None:
            raise Refused(
                HTTPStatus.FORBIDDEN, "you are not signed in to the application that has this console, or have no role"
            )
        _check_name(found.name)
        return Visitor(found.name, found.role)

    async def sign_in(self, token: str) -> str | None:
        """Begin a session with a token, and return it; None if the token is not known."""
        given, found = digest(token.strip()), None
        for name, one in (await self._client.send(read_tokens())).items():
            if hmac.compare_digest(one.digest, given):
                found = name
        if found is None:
            return None
        session = secrets.token_urlsafe(32)
        key = keys.CONSOLE_SESSION + digest(session)
        known = msgspec.json.encode(_Session(found, given))
        await self._client.send(Call(("SET", key, known, "EX", LENGTH), raw, near=key))
        return session

    async def sign_out(self, visitor: Visitor) -> None:
        """End a session, in all consoles at once."""
        key = keys.CONSOLE_SESSION + digest(visitor.session)
        await self._client.send(Call(("DEL", key), raw, near=key))

    async def form_token(self, visitor: Visitor) -> str:
        """Return what each form of a user's pages has, and no other site can know."""
        return hmac.new(await self._read_secret(), f"{visitor.session} {visitor.name}".encode(), sha256).hexdigest()

    async def _read_secret(self, *, anew: bool = False) -> bytes:
        if anew or not self._secret:
            made = secrets.token_hex(32).encode()
            key = keys.CONSOLE_SECRET
            found = await self._client.send(Call(("SET", key, made, "NX", "GET"), raw, near=key))
            self._secret = found or made
        return self._secret

    async def check_form(self, request: HTTPConnection, visitor: Visitor, form: Mapping[str, Any]) -> None:
        """Refuse a form that did not come from a page of this console.

        Raises:
            Refused
        """
        check_origin(request)
        given = str(form.get("proof", ""))
        if not hmac.compare_digest(given.encode(), (await self.form_token(visitor)).encode()):
            await self._read_secret(anew=True)  # it is another one if Redis has lost its data
            if not hmac.compare_digest(given.encode(), (await self.form_token(visitor)).encode()):
                raise Refused(
                    HTTPStatus.FORBIDDEN, "this form is too old, or not from this console: load the page again"
                )


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= NAME_MOST or not name.isprintable():
        raise Refused(HTTPStatus.FORBIDDEN, f"a user's name is 1 to {NAME_MOST} characters that can be printed")


def check_origin(request: HTTPConnection) -> None:
    """Refuse a request that a page of another origin made a browser send.

    Raises:
        Refused
    """
    site = request.headers.get("sec-fetch-site")
    if site is None:
        other = is_other_origin(request.headers.get("host"), request.headers.get("origin"))
    else:
        other = site not in ("same-origin", "none")
    if other:
        raise Refused(HTTPStatus.FORBIDDEN, "the request came from a page of another site")


def _address_of(request: HTTPConnection) -> str:
    """Return the address from which a request comes; empty if it is not known. One of IPv4 has the form of IPv4."""
    try:
        found = ip_address(request.client.host if request.client else "")
    except ValueError:
        return ""
    return str((found.ipv4_mapped if isinstance(found, IPv6Address) else None) or found)


def _utf8(header: str) -> str:
    """Return a header as UTF-8, in which proxies write names; servers read each byte as a character."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _refuse_other_machines(request: HTTPConnection) -> None:
    """Refuse requests that may come from another machine: without tokens, only this one's users are trusted.

    Raises:
        Refused
    """
    address = _address_of(request)
    if not address or not ip_address(address).is_loopback:
        raise Refused(
            HTTPStatus.FORBIDDEN,
            f"a console without tokens answers to its own machine, and not to {address or 'unknown addresses'}: make "
            "a token with `evsched console token`",
        )
    if marked := next((name for name in _OF_PROXIES if name in request.headers), None):
        raise Refused(
            HTTPStatus.FORBIDDEN,
            f"a proxy has sent this request (it has the header {marked}), and there is no token: make one with "
            "`evsched console token`",
        )


def _refuse_other_hosts(request: HTTPConnection) -> None:
    """Refuse a name that is not known here: without tokens, any page whose name leads here could read the console.

    Raises:
        Refused
    """
    host = request.headers.get("host", "")
    if not is_known_host(host):
        raise Refused(
            HTTPStatus.FORBIDDEN,
            f"a console without tokens answers to localhost and addresses, and not to {host!r:.60}",
        )


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise ConfigError(f"{variable('console_proxies')}: {text!r} is not an address, such as 10.0.0.7") from None
