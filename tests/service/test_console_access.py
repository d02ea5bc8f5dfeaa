"""Who may see and do what in the console: roles, sessions, forged requests, proxies, headers. All on a real Redis."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Generator
from hashlib import sha256
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from evsched import keys
from evsched.config import Config
from evsched.console import create
from evsched.console.console_app import PAGES
from evsched.console.page import Pages
from evsched.console.user_acts import ACTS
from evsched.console.users import COOKIE, LENGTH, ROLES, Role, Visitor
from evsched.errors import CannotStart, ConfigError
from evsched.services.service import run_console
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import words
from tests.support.cli import Cli
from tests.support.console import BASE, Consoles, Found, Stream, consoles, query_of, seed

pytestmark = pytest.mark.one_server


@pytest.fixture
def users(server: EmbeddedRedis) -> Generator[Consoles]:
    with consoles(server.url) as found:
        yield found


@pytest.fixture
async def app(users: Consoles) -> AsyncGenerator[Any]:
    """A console that has a token, so that everybody must sign in."""
    users.token("root", "admin")
    async with users.app() as app:
        yield app


def everything(raw: Any) -> dict[bytes, bytes]:
    return {key: raw.dump(key) for key in sorted(raw.keys("*"))}


def fields(queue: str) -> dict[str, str]:
    """Return a form that each act can read."""
    return {
        "queue": queue,
        "job": f"{queue} waits",
        "q": f"queue:{queue}",
        "name": "ann",
        "role": "admin",
        "concurrency": "1",
        "due": "5m",
        "from": "2030-01-01",
        "to": "2030-01-02",
    }


# Roles.


async def test_a_viewer_can_do_nothing(users: Consoles, app: Any, queue: str, raw: Any) -> None:
    seed(raw, queue)
    async with users.signed_in(app, "viewer") as viewer:
        proof = await viewer.proof()
        assert proof, "the form to sign out has it"
        before = everything(raw)
        for act, (role, _) in ACTS.items():
            answer = await viewer.send(f"/act/{act}", proof=proof, **fields(queue))
            assert answer.status_code == 403, act
            assert f"this is for the role {role}, and yours is viewer: nothing was done" in answer.text
            assert everything(raw) == before, act
    assert raw.exists(f"{keys.root(queue)}audit") == 0


async def test_an_operator_makes_no_tokens(users: Consoles, app: Any, queue: str, raw: Any) -> None:
    async with users.signed_in(app, "operator") as operator:
        proof = await operator.proof()
        before = everything(raw)
        for act in (name for name, (role, _) in ACTS.items() if role == "admin"):
            assert (await operator.send(f"/act/{act}", proof=proof, **fields(queue))).status_code == 403
        assert everything(raw) == before
        assert (await operator.get("/tokens")).status_code == 403
        assert "/tokens" not in (await operator.get("/")).text


async def test_an_operator_acts_and_is_named_in_the_audit_trail(
    users: Consoles, app: Any, queue: str, raw: Any
) -> None:
    seed(raw, queue)
    async with users.signed_in(app, "operator", name="ann") as operator:
        answer = await operator.send("/act/pause", queue=queue, why="release")
        assert answer.status_code == 303
        assert f"Queue {queue} is paused" in (await operator.get(answer.headers["location"])).text
    assert users.audited(queue) == [("ann", "console", "pause")]


async def test_pages_of_a_viewer_only_search_and_sign_out(users: Consoles, app: Any, queue: str, raw: Any) -> None:
    seed(raw, queue)
    searched = {"", *(view.path for view in PAGES)}
    async with users.signed_in(app, "viewer") as viewer:
        for view in PAGES:
            answer = await viewer.get(view.path + await query_of(view.path, queue, app, users))
            forms = Found(answer.text).forms
            if view.needs != "viewer":
                assert (answer.status_code, forms) == (403, []), view.path
            assert {action for method, action in forms if method == "post"} <= {"/sign-out"}, view.path
            assert {action for method, action in forms if method == "get"} <= searched, view.path


# Forged requests.


FORGED: list[tuple[int, dict[str, str]]] = [
    (403, {"proof": ""}),
    (403, {"proof": "0" * 64}),
    (403, {"proof": "of another"}),
    (403, {"origin": "https://evil.example"}),
    (403, {"origin": "http://console.evil.example"}),
    (403, {"origin": "null"}),
    (403, {"sec-fetch-site": "cross-site"}),
    (403, {"sec-fetch-site": "same-site"}),
    (415, {"content-type": "application/json"}),
    (415, {"content-type": "text/plain"}),
    (415, {"content-type": "multipart/form-data; boundary=x"}),
    (405, {"method": "GET"}),
    (405, {"method": "PUT"}),
    (303, {"sec-fetch-site": "same-origin"}),
    (303, {}),
]


async def test_forged_form_does_nothing(users: Consoles, app: Any, queue: str, raw: Any) -> None:
    seed(raw, queue)
    async with users.signed_in(app, "operator", name="ann") as ann, users.signed_in(app, "admin", name="bob") as bob:
        own, others = await ann.proof(), await bob.proof()
        before = everything(raw)
        for status, change in FORGED:
            proof = others if change.get("proof") == "of another" else change.get("proof", own)
            headers = {"content-type": "application/x-www-form-urlencoded", "origin": BASE}
            headers |= {name: value for name, value in change.items() if name not in ("proof", "method")}
            body = f"proof={proof}&queue={queue}"
            method = change.get("method", "POST")
            query = f"?{body}" if method == "GET" else ""
            answer = await ann.http.request(method, f"/act/pause{query}", content=body, headers=headers)
            assert answer.status_code == status, change
            assert (everything(raw) == before) == (status != 303), change


async def test_form_is_bounded_also_for_strangers(users: Consoles, app: Any, queue: str) -> None:
    async with users.browser(app) as stranger:
        assert (await stranger.sign_in("x" * 5000)).status_code == 413
        assert (await stranger.send("/act/pause", proof="", queue=queue)).status_code == 403


async def test_act_that_is_not_known_is_not_found(users: Consoles, app: Any) -> None:
    async with users.signed_in(app, "admin") as admin:
        assert (await admin.send("/act/nonsense")).status_code == 404


# Sessions.


@pytest.mark.parametrize(
    "ended", ["signed out", "deleted", *(pytest.param(one, marks=pytest.mark.extra) for one in ("replaced", "lost"))]
)
async def test_session_that_has_ended_is_dead_in_every_console(users: Consoles, app: Any, raw: Any, ended: str) -> None:
    async with (
        users.app() as second,
        users.signed_in(app, "admin", name="bob") as bob,
        users.signed_in(app, "operator", name="ann") as ann,
        users.browser(second) as elsewhere,
    ):
        elsewhere.http.cookies.set(COOKIE, ann.session)
        proof, session = await ann.proof(), ann.session
        assert (await elsewhere.get("/")).status_code == 200
        if ended == "signed out":
            assert (await ann.send("/sign-out", proof=proof)).status_code == 303
            assert ann.session == "", "the browser forgets it"
        elif ended == "deleted":
            await bob.send("/act/remove-token", name="ann")
        elif ended == "replaced":
            await bob.send("/act/make-token", name="ann", role="operator")
        else:
            raw.flushall()
            users.token("root", "admin")
        for app_ in (app, second):
            async with users.browser(app_) as again:
                again.http.cookies.set(COOKIE, session)
                answer = await again.get("/queue", params={"name": "a b"})
                assert answer.status_code == 303
                assert answer.headers["location"] == "/sign-in?back=%2Fqueue%3Fname%3Da%2Bb"
                assert (await again.send("/act/pause", proof=proof, queue="q")).status_code == 403
                async with Stream(app_, "/live/", session) as stream:
                    assert stream.status == 204, "a browser does not ask again"


async def test_signing_out_needs_the_proof(users: Consoles, app: Any) -> None:
    async with users.signed_in(app, "viewer") as viewer:
        assert (await viewer.send("/sign-out", proof="")).status_code == 403
        assert (await viewer.get("/")).status_code == 200


async def test_token_or_session_that_is_not_valid_is_refused(users: Consoles, app: Any, raw: Any) -> None:
    async with users.signed_in(app, "admin") as admin:
        (key,) = raw.keys(f"{keys.CONSOLE_SESSION}*")
        raw.set(key, "[")
        assert (await admin.get("/")).status_code == 303
        raw.hset(keys.CONSOLE_TOKENS, "mallory", '{"digest":"x","role":"god","made":0,"by":"x"}')
        answer = await admin.sign_in("x")
        assert (answer.status_code, "This token is not known here" in answer.text) == (403, True)


async def test_tokens_that_cannot_be_read_do_not_open_the_console(users: Consoles, raw: Any) -> None:
    raw.hset(keys.CONSOLE_TOKENS, "ann", "[")
    async with users.app(alone=True) as app, users.browser(app, base="http://localhost") as anybody:
        assert (await anybody.get("/")).status_code == 303


@pytest.mark.parametrize(
    ("prefix", "base", "headers", "path", "secure"),
    [
        ("", "http://console", None, "/", False),
        ("", "https://console", None, "/", True),
        ("", "http://console", ("x-forwarded-proto", "https"), "/", True),
        ("/ops/jobs", "http://console", None, "/ops/jobs", False),
    ],
)
async def test_cookie_is_for_this_console_and_not_for_scripts(
    users: Consoles, app: Any, prefix: str, base: str, headers: tuple[str, str] | None, path: str, secure: bool
) -> None:
    whole = Starlette(routes=[Mount(prefix, app)]) if prefix else app
    async with users.browser(whole, prefix=prefix, base=base, named=headers) as browser:
        answer = await browser.sign_in(users.token("ann", "viewer"))
    assert answer.headers["location"] == f"{prefix}/"
    (name, value), *flags = (part.partition("=")[::2] for part in answer.headers["set-cookie"].split("; "))
    assert (name, len(value)) == (COOKIE, 43)
    given = {flag.lower(): value for flag, value in flags}
    assert given.pop("expires", "") is not None
    wanted = {"httponly": "", "samesite": "lax", "path": path, "max-age": "43200"} | ({"secure": ""} if secure else {})
    assert given == wanted


async def test_redis_has_only_digests_and_no_log_a_secret(
    users: Consoles, app: Any, raw: Any, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    token = users.token("ann", "viewer")
    async with users.browser(app) as ann:
        await ann.sign_in(token)
        proof = await ann.proof()
        stored = b"\n".join(everything(raw)).decode("latin-1")
        stored += "\n".join(raw.get(key).decode() for key in raw.keys(f"{keys.CONSOLE_SESSION}*"))
        stored += str(raw.hgetall(keys.CONSOLE_TOKENS))
        assert sha256(ann.session.encode()).hexdigest() in stored
        assert sha256(token.encode()).hexdigest() in stored
        assert 0 < raw.ttl(raw.keys(f"{keys.CONSOLE_SESSION}*")[0]) <= LENGTH
        for secret in (token, ann.session, proof):
            assert secret not in stored
            assert secret not in caplog.text
        listed = cli.run("console", "tokens").stdout + cli.run("console", "tokens", "--json").stdout
        assert "ann" in listed
        assert token not in listed
        assert sha256(token.encode()).hexdigest() not in listed


async def test_commands_make_tokens_and_end_sessions(users: Consoles, app: Any, cli: Cli) -> None:
    token = cli.run("console", "token", "ann", "--role", "operator", "--as", "root").stdout.strip()
    assert [(one["user"], one["role"], one["by"]) for one in cli.json("console", "tokens")] == [
        ("ann", "operator", "root"),
        ("root", "admin", "test"),
    ]
    async with users.browser(app) as ann:
        assert (await ann.sign_in(token)).status_code == 303
        assert (await ann.get("/")).status_code == 200
        assert cli.run("console", "token", "ann", "--delete").returncode == 0
        assert (await ann.get("/")).status_code == 303
    assert cli.run("console", "token", "ann", "--delete").returncode == 1
    for wrong in (
        ["ann"],
        ["ann", "--delete", "--role", "admin"],
        ["a\nb", "--role", "admin"],
        ["", "--role", "admin"],
    ):
        assert cli.run("console", "token", *wrong).returncode == 2, wrong


async def test_tokens_that_are_made_and_deleted_are_in_the_audit_trail(users: Consoles, app: Any, cli: Cli) -> None:
    async with users.signed_in(app, "admin", name="root") as root:
        begun = cli.json("audit", "--limit", "1")[0]["at"]
        await root.send("/act/make-token", name="carol", role="viewer")
        await root.send("/act/remove-token", name="carol")
        await root.send("/act/remove-token", name="nobody")
        cli.run("console", "token", "dave", "--role", "operator", "--as", "ann")
        acts = [
            (one["queue"], one["who"], one["from"], one["act"], one["what"])
            for one in cli.json("audit", "--since", str(begun))
            if one["at"] > begun
        ]
        assert acts == [
            ("", "ann", "cli", "make-token", {"user": "dave", "role": "operator"}),
            ("", "root", "console", "remove-token", {"user": "carol"}),
            ("", "root", "console", "make-token", {"user": "carol", "role": "viewer"}),
        ]
        page = words((await root.get("/audit?id=carol")).text)
        assert "root console deleted the token of carol" in page
        assert "root console made a token for carol as viewer" in page
        assert "dave" not in page
        assert [one["act"] for one in cli.json("audit", "--id", "carol", "--limit", "2")] == [
            "remove-token",
            "make-token",
        ]
        assert "for carol" not in (await root.get("/audit?id=carol&queue=other")).text


@pytest.mark.extra
async def test_token_is_not_made_if_the_act_cannot_be_noted(users: Consoles, app: Any, raw: Any) -> None:
    async with users.signed_in(app, "admin", name="root") as root:
        kept = raw.dump(keys.audit(""))
        raw.delete(keys.audit(""))
        try:
            raw.set(keys.audit(""), "of another type")
            assert (await root.send("/act/make-token", name="mallory", role="admin")).status_code == 502
            assert not raw.hexists(keys.CONSOLE_TOKENS, "mallory")
            page = words((await root.get("/audit")).text)
            assert "Not read acts on no queue" in page
        finally:
            raw.restore(keys.audit(""), 0, kept, replace=True)


@pytest.mark.extra
async def test_token_is_deleted_even_if_the_act_cannot_be_noted(users: Consoles, app: Any, cli: Cli, raw: Any) -> None:
    for user in ("ann", "bob"):
        users.token(user, "viewer")
    said = "has no token any more. The audit trail could not be written: "
    async with users.signed_in(app, "admin", name="root") as root:
        kept = raw.dump(keys.audit(""))
        raw.delete(keys.audit(""))
        try:
            raw.set(keys.audit(""), "of another type")
            done = cli.run("console", "token", "ann", "--delete")
            assert (done.returncode, done.stdout) == (0, "")
            assert f"ann {said}" in done.stderr
            answer = await root.send("/act/remove-token", name="bob")
            assert f"bob {said}" in (await root.get(answer.headers["location"])).text
        finally:
            raw.restore(keys.audit(""), 0, kept, replace=True)
    assert raw.hkeys(keys.CONSOLE_TOKENS) == [b"root"]


async def test_new_token_is_shown_once_and_to_its_maker_only(users: Consoles, app: Any, raw: Any) -> None:
    async with (
        users.signed_in(app, "admin", name="root") as root,
        users.signed_in(app, "admin", name="bob") as other,
    ):
        answer = await root.send("/act/make-token", name="carol", role="admin")
        where = answer.headers["location"]
        run = where.partition("act=")[2]
        for page in (where, f"/?act={run}", f"/act?id={run}"):
            text = (await other.get(page)).text
            assert not secrets_in(text, raw), page
        assert not secrets_in((await root.get(f"/act?id={run}")).text, raw)
        assert len(secrets_in((await root.get(where)).text, raw)) == 1
        assert not secrets_in((await root.get(where)).text, raw), "it was shown"


def secrets_in(text: str, raw: Any) -> list[str]:
    """Return the tokens that a page shows."""
    known = str(raw.hgetall(keys.CONSOLE_TOKENS))
    return [one for one in re.findall(r"[\w-]{43}", text) if sha256(one.encode()).hexdigest() in known]


# Without tokens.


async def test_console_without_tokens_serves_its_own_machine_only(users: Consoles) -> None:
    async with users.app(alone=True) as app:
        for base in ("http://localhost:8421", "http://127.0.0.1", "http://[::1]:8421"):
            async with users.browser(app, base=base) as local:
                answer = await local.get("/")
                assert (answer.status_code, "local, admin" in answer.text) == (200, True), base
        for base in ("http://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example"):
            async with users.browser(app, base=base) as rebound:
                for path in ("/", "/live/", "/tokens"):
                    answer = await rebound.get(path)
                    assert (answer.status_code, "answers to localhost and addresses" in answer.text) == (403, True)
                assert (await rebound.send("/act/pause", proof="", queue="q")).status_code == 403
        async with users.browser(app, base="http://localhost", address="10.1.2.3") as other:
            answer = await other.get("/")
            assert (answer.status_code, "answers to its own machine" in answer.text) == (403, True)
        for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host"):
            async with users.browser(app, base="http://localhost", named=(header, "x")) as proxied:
                assert (await proxied.get("/")).status_code == 403


async def test_with_a_token_everybody_must_sign_in(users: Consoles) -> None:
    async with users.app(alone=True) as app, users.browser(app, base="http://localhost") as local:
        proof = await local.proof("/tokens")
        answer = await local.http.post("/act/make-token", data={"proof": proof, "name": "ann", "role": "viewer"})
        assert (await local.get(answer.headers["location"])).status_code == 303
        assert (await local.http.post("/act/pause", data={"proof": proof, "queue": "q"})).status_code == 403


async def test_console_of_other_machines_serves_nothing_without_tokens(users: Consoles) -> None:
    async with users.app() as app, users.browser(app, base="http://localhost") as local:
        for view in PAGES:
            assert (await local.get(view.path)).status_code == 303, view.path
        assert "There is no token yet" in (await local.get("/sign-in")).text


# Users whom a proxy names.

PROXIED: dict[str, Any] = {
    "console_proxies": ("10.0.0.7",),
    "console_users": ("ana=admin", "j\u00f6rg=operator", "*=viewer"),
}


async def test_proxy_names_users_and_the_settings_their_roles(users: Consoles, queue: str, raw: Any) -> None:
    seed(raw, queue)
    async with users.app(**PROXIED) as app:
        for name, role in (("ana", "admin"), ("j\u00f6rg", "operator"), ("eve", "viewer"), (" ana ", "admin")):
            async with users.browser(app, address="10.0.0.7", named=("Remote-User", name)) as one:
                text = (await one.get("/queue", params={"name": queue})).text
                assert f"{name.strip()}, {role}" in text
        async with users.browser(app, address="::ffff:10.0.0.7", named=("Remote-User", "j\u00f6rg")) as one:
            proof = await one.proof(f"/queue?name={queue}")
            assert (await one.send("/act/pause", proof=proof, queue=queue)).status_code == 303
            assert (await one.get("/sign-in")).status_code == 303, "nobody signs in"
    assert users.audited(queue) == [("j\u00f6rg", "console", "pause")]


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("10.0.0.8", ["ana"]),
        ("127.0.0.1", ["ana"]),
        ("", ["ana"]),
        ("10.0.0.7", []),
        ("10.0.0.7", ["ana", "eve"]),
        ("10.0.0.7", [""]),
        ("10.0.0.7", ["a" * 201]),
        ("10.0.0.7", ["a\x85b"]),
    ],
)
async def test_request_that_the_proxy_did_not_send_is_refused(users: Consoles, address: str, names: list[str]) -> None:
    token = users.token("root", "admin")
    async with users.app(**PROXIED) as app, users.browser(app, address=address) as one:
        headers = [(b"Remote-User", name.encode("latin-1")) for name in names]
        for path in ("/", "/live/", "/tokens"):
            assert (await one.http.get(path, headers=headers)).status_code == 403, path
        assert (await one.sign_in(token)).headers.get("set-cookie") is None
        assert (await one.http.post("/act/pause", headers=headers, data={"queue": "q"})).status_code == 403


async def test_request_with_two_names_says_so(users: Consoles) -> None:
    async with users.app(**PROXIED) as app, users.browser(app, address="10.0.0.7") as one:
        headers = [(b"Remote-User", b"ana"), (b"Remote-User", b"eve")]
        assert "names 2 users: have the proxy replace the header" in (await one.http.get("/", headers=headers)).text


async def test_no_token_is_offered_or_made_where_a_proxy_names_users(users: Consoles) -> None:
    async with users.app(**PROXIED) as app, users.browser(app, address="10.0.0.7", named=("Remote-User", "ana")) as one:
        page = (await one.get("/tokens")).text
        assert "Tokens are not used." in page
        assert "/act/make-token" not in page
        assert all(
            text in page for text in ("<th>j\u00f6rg</th><td>operator</td>", "<th>all others</th><td>viewer</td>")
        )
        proof = await one.proof("/jobs?q=nobody")
        assert (await one.send("/act/make-token", proof=proof, name="x", role="viewer")).status_code == 400


async def test_user_without_a_role_is_refused(users: Consoles) -> None:
    settings: dict[str, Any] = PROXIED | {"console_users": ("ana=admin",), "console_header": "X-User"}
    async with users.app(**settings) as app:
        for name, status in (("ana", 200), ("eve", 403), ("*", 403)):
            async with users.browser(app, address="10.0.0.7", named=("X-User", name)) as one:
                assert (await one.get("/")).status_code == status, name


# Users of the application in which the console is mounted.


async def find_visitor(request: HTTPConnection) -> Visitor | None:
    name, role = request.cookies.get("who", ":").split(":")
    return Visitor(name, cast("Role", role), session="x") if role else None


async def test_application_names_users_and_their_roles(users: Consoles, queue: str, raw: Any) -> None:
    seed(raw, queue)
    async with users.app(find_visitor=find_visitor) as app, users.browser(app) as one:
        one.http.cookies.set("who", "ana:operator")
        text = (await one.get("/queue", params={"name": queue})).text
        assert "ana, operator" in text
        assert "/sign-out" not in text, "it is the application that signs out"
        proof = await one.proof(f"/queue?name={queue}")
        assert (await one.send("/act/pause", proof=proof, queue=queue)).status_code == 303
        one.http.cookies.set("who", "eve:operator")
        assert (await one.send("/act/resume", proof=proof, queue=queue)).status_code == 403, "that is ana's proof"
    assert users.audited(queue) == [("ana", "console", "pause")]


@pytest.mark.parametrize("who", ["", "eve:", ":operator", f"{'a' * 201}:admin"])
async def test_user_whom_the_application_does_not_know_is_refused(users: Consoles, who: str) -> None:
    token = users.token("root", "admin")
    async with users.app(alone=True, find_visitor=find_visitor) as app, users.browser(app) as one:
        if who:
            one.http.cookies.set("who", who)
        for path in ("/", "/live/", "/tokens"):
            assert (await one.get(path)).status_code == 403, path
        assert (await one.sign_in(token)).headers.get("set-cookie") is None
        assert (await one.http.post("/act/pause", data={"queue": "q"})).status_code == 403


async def test_no_token_is_offered_or_made_where_the_application_names_users(users: Consoles) -> None:
    async with users.app(find_visitor=find_visitor) as app, users.browser(app) as one:
        one.http.cookies.set("who", "ana:admin")
        page = (await one.get("/tokens")).text
        assert "gives them their roles. Tokens are not used." in page
        assert "/act/make-token" not in page
        proof = await one.proof("/jobs?q=nobody")
        assert (await one.send("/act/make-token", proof=proof, name="x", role="viewer")).status_code == 400
    with pytest.raises(ConfigError, match="a proxy signs users in, and the application does"):
        create(Config(url=users.url, **PROXIED), find_visitor=find_visitor)


@pytest.mark.parametrize(
    "settings",
    [
        {"console_users": ("ana=admin",)},
        {"console_header": "Bad Header:"},
        {"console_proxies": ("proxy.example",)},
        {"console_proxies": ("10.0.0.7",), "console_users": ("ana",)},
        {"console_proxies": ("10.0.0.7",), "console_users": ("ana=god",)},
        {"console_proxies": ("10.0.0.7",), "console_users": ("=admin",)},
    ],
)
def test_settings_of_users_that_are_not_valid_are_refused(server: EmbeddedRedis, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="EVSCHED_CONSOLE_"):
        create(Config(url=server.url, **settings))


def test_site_that_is_no_function_is_refused() -> None:
    with pytest.raises(CannotStart, match="EVSCHED_CONSOLE_SITE: module 'json' has no function for 'json:nothing'"):
        run_console(Config(console_site="json:nothing"))


# Redirects and headers.


BACK = [
    ("/jobs?q=task%3Aa+b", "/jobs?q=task%3Aa+b"),
    ("//evil.example", "/"),
    ("/\\evil.example", "/"),
    ("\\\\evil.example", "/"),
    ("https://evil.example", "/"),
    ("https:evil.example", "/"),
    ("javascript:alert(1)", "/"),
    ("evil.example", "/"),
    ("/\t/evil.example", "/"),
    ("/\n/evil.example", "/"),
    ("/jobs\r\nSet-Cookie: a=b", "/"),
    (" //evil.example", "/"),
    ("/a\\..\\\\evil.example", "/"),
    ("//[", "/"),
    ("", "/"),
]


@pytest.mark.parametrize("prefix", ["", pytest.param("/ops", marks=pytest.mark.extra)])
async def test_signing_in_leads_to_no_other_site(users: Consoles, app: Any, prefix: str) -> None:
    whole = Starlette(routes=[Mount(prefix, app)]) if prefix else app
    async with users.browser(whole, prefix=prefix) as browser:
        token = users.token("ann", "viewer")
        for back, lands in BACK:
            assert (await browser.get("/sign-in", params={"back": back})).status_code == 200
            answer = await browser.sign_in(token, back=back)
            assert (answer.status_code, answer.headers["location"]) == (303, prefix + lands), back


CSP = {
    "default-src 'none'",
    "style-src 'self'",
    "script-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
}


def check_headers(headers: Any) -> None:
    assert {*headers["content-security-policy"].split("; ")} == CSP
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_every_answer_has_the_headers(
    users: Consoles, app: Any, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with users.signed_in(app, "operator") as ann, users.browser(app) as stranger:
        answers = {
            200: [await ann.get("/"), await ann.get("/static/console.css"), await stranger.get("/sign-in")],
            204: [await stranger.get("/live/")],
            303: [await stranger.get("/"), await ann.send("/sign-out")],
        }
        await ann.sign_in(users.token("ann", "operator"))
        answers[400] = [await ann.get("/queue", params={"name": "a b"})]
        answers[403] = [await ann.send("/act/pause", proof=""), await stranger.sign_in("x"), await ann.get("/tokens")]
        answers[404] = [await ann.get("/nothing"), await ann.get("/static/x"), await ann.get("/static/../access.py")]
        answers[405] = [await ann.get("/act/pause"), await ann.http.put("/")]
        raw.execute_command("SET", keys.schedule(queue), "not a sorted set")
        answers[502] = [await ann.get("/queue", params={"name": queue})]

        draw = Pages.draw

        def fail(pages: Pages, name: str, values: Any) -> str:
            return draw(pages, name, values if name == "error" else {})

        monkeypatch.setattr(Pages, "draw", fail)
        answers[500] = [await ann.get("/")]
    for status, found in answers.items():
        for answer in found:
            assert (status, answer.status_code) == (status, status), answer.url
            check_headers(answer.headers)
            static = status == 200 and "/static/" in str(answer.url)
            assert answer.headers["cache-control"] == ("public, max-age=604800" if static else "no-store"), answer.url


async def test_parameters_of_any_name_are_answered(users: Consoles, app: Any) -> None:
    async with users.signed_in(app, "viewer") as viewer:
        for name in ("path", "prefix", "self", "url", "visitor", "proof", "act", "more", "__class__"):
            for view in (view for view in PAGES if view.needs == "viewer"):
                assert (await viewer.get(view.path, params={name: "1"})).status_code < 500, (view.path, name)


async def test_strangers_do_not_learn_where_redis_is(users: Consoles) -> None:
    with EmbeddedRedis(port=0) as own, consoles(own.url) as there:
        where = own.url.partition("://")[2]
        async with there.app() as app, there.app(alone=True) as open_app:
            own.__exit__(None, None, None)
            async with there.browser(app) as stranger, there.browser(open_app, base="http://localhost") as local:
                stranger.http.cookies.set(COOKIE, "x")
                answer, known = await asyncio.gather(stranger.get("/"), local.get("/"))
                assert (answer.status_code, where in answer.text) == (503, False)
                assert "evsched doctor" in answer.text
                assert (known.status_code, where in known.text) == (503, True), "its users may know"


def test_roles_include_each_other() -> None:
    roles: dict[Role, list[Role]] = {one: [other for other in ROLES if Visitor("x", one).may(other)] for one in ROLES}
    assert roles == {
        "viewer": ["viewer"],
        "operator": ["viewer", "operator"],
        "admin": ["viewer", "operator", "admin"],
    }


async def test_refused_form_leads_back_to_its_page(users: Consoles, queue: str) -> None:
    async with users.app() as app, users.signed_in(app, "operator") as operator:
        page = f"/queue?name={queue}"
        for referer, back in ((f"http://console.example{page}", page), ("http://evil.example/x", "/"), ("", "/")):
            proof = await operator.proof("/jobs?q=place:dead")
            found = await operator.http.post(
                "/act/pause",
                data={"proof": proof, "queue": queue, "until": "soon"},
                headers={"Referer": referer, "Host": "console.example"},
            )
            assert found.status_code == 400
            assert f'href="{back}">Back to the form</a>' in found.text.replace("&amp;", "&")
