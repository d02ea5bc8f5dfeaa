"""The console in the site: who may see it and act in it, as Django's admin and its permissions say."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.http import HttpResponseRedirect
from django.test import Client, modify_settings, override_settings
from django.utils import timezone
from msgspec import Struct
from starlette.responses import Response

from evsched.console import live
from evsched.django import with_console
from evsched.errors import ConfigError
from tests.django import settings as of_site
from tests.django.test_site import Site
from tests.support.console import BASE, Browser, Consoles, Found, Stream, consoles, seed
from tests.support.patience import PATIENCE

ENTRY = "/admin/evsched/adminconsole/"


@contextmanager
def connected() -> Generator[None]:
    """Give this thread a connection of its own, for the settings of now."""
    with suppress(AttributeError):  # it had none
        del connections["default"]
    try:
        yield
    finally:
        connections["default"].close()
        del connections["default"]


def move_to(file: Path, patch: pytest.MonkeyPatch) -> None:
    """Have the site use a database that its threads and processes share."""
    patch.setitem(connections.settings["default"], "NAME", str(file))


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database after `migrate`."""
    file = tmp_path_factory.mktemp("site") / "migrated.sqlite3"
    with pytest.MonkeyPatch.context() as patch:
        move_to(file, patch)
        with connected():
            call_command("migrate", verbosity=0)
    return file


@pytest.fixture
def database(migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Give the site a database of its own."""
    file = tmp_path / "site.sqlite3"
    shutil.copy(migrated, file)
    move_to(file, monkeypatch)
    with connected():
        yield file


def make_user(name: str, *permissions: str, **fields: Any) -> User:
    given: dict[str, Any] = {"is_staff": True, **fields}
    user = User.objects.create_user(name, password="secret", **given)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


def sign_in(name: str) -> str:
    """Return the cookie of a new session."""
    client = Client()
    client.force_login(User.objects.get(username=name))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@sync_to_async
def in_site(change: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Use the database of the site in a test with an event loop."""
    with connected():
        return change(*given, **named)


class People(Struct):
    """Browsers in front of the site with its console."""

    app: Any
    consoles: Consoles

    @asynccontextmanager
    async def nobody(self, base: str = BASE) -> AsyncGenerator[Browser]:
        async with self.consoles.browser(self.app, prefix="/jobs", base=base) as browser:
            yield browser

    @asynccontextmanager
    async def signed_in(self, name: str, *permissions: str, base: str = BASE, **fields: Any) -> AsyncGenerator[Browser]:
        """Make a user of the staff, and yield the browser after the login."""
        await in_site(make_user, name, *permissions, **fields)
        async with self.nobody(base) as browser:
            host = urlsplit(base).netloc
            domain = host if "." in host else f"{host}.local"  # as http.cookiejar has it
            browser.http.cookies.set("sessionid", await in_site(sign_in, name), domain)
            yield browser

    def stream(self, browser: Browser, path: str) -> Stream:
        session = browser.http.cookies.get("sessionid") or ""
        return Stream(self.app, f"/jobs/live{path}", session, cookie="sessionid", host="console")


@pytest.fixture
async def people(site: str, database: Path) -> AsyncGenerator[People]:
    app = with_console()
    with consoles(site) as found:
        async with app.router.lifespan_context(app):
            yield People(app, found)


def signs_in(answer: httpx.Response, then: str) -> bool:
    """Return whether an answer leads to the login of the admin, and from there to a page of the console."""
    location: str = answer.headers.get("location", "")
    where = urlsplit(location)
    after = urlsplit(parse_qs(where.query).get("next", [""])[0])
    page = parse_qs(after.query).get("page", [""])[0]
    return (answer.status_code, where.path, after.path, page) == (302, "/admin/login/", ENTRY, then)


def test_migrate_makes_the_permissions_and_no_table(database: Path) -> None:
    found = Permission.objects.filter(content_type__app_label="evsched").values_list("codename", flat=True)
    assert sorted(found) == ["operate_console", "view_console"]
    assert not [name for name in connections["default"].introspection.table_names() if name.startswith("evsched")]
    for every in (False, True):
        call_command("dumpdata", "evsched", all=every, stdout=StringIO())
    call_command("makemigrations", check=True, stdout=StringIO())


@pytest.mark.parametrize(
    ("permissions", "fields", "role"),
    [
        pytest.param(("view_console",), {}, "viewer", id="may view"),
        pytest.param(("operate_console",), {}, "operator", id="may act"),
        pytest.param((), {"is_superuser": True}, "operator", id="superuser"),
    ],
)
async def test_permissions_are_roles(
    people: People, queue: str, raw: Any, permissions: tuple[str, ...], fields: dict[str, Any], role: str
) -> None:
    seed(raw, queue)
    async with people.signed_in("ann", *permissions, **fields) as ann:
        page = (await ann.get(f"/queue?name={queue}")).text
        assert f"ann, {role}" in page
        assert {*re.findall(r'(?:href|src|action)="(/\w*)', page)} == {"/jobs"}
        assert "/sign-out" not in page
        async with people.stream(ann, f"/queue?name={queue}") as stream:
            assert await stream.regions()
        acted = await ann.send("/act/pause", proof=Found(page).fields.get("proof", ""), queue=queue)
    assert acted.status_code == (303 if role == "operator" else 403)
    expected = [("ann", "console", "pause")] if role == "operator" else []
    assert people.consoles.audited(queue) == expected


@pytest.mark.parametrize("fields", [{"is_staff": False}, {"is_active": False}])
async def test_users_who_may_not_use_the_admin_are_sent_to_its_login(people: People, fields: dict[str, Any]) -> None:
    async with people.signed_in("ann", "operate_console", **fields) as ann:
        assert signs_in(await ann.get("/"), "/")
        assert signs_in(await ann.send("/act/pause", proof="", queue="mails"), "")


async def test_staff_without_the_permission_read_its_name(people: People) -> None:
    async with people.signed_in("ann", "change_user") as ann:
        for path in ("/", "/live/", "/complete?q=x"):
            page = await ann.get(path)
            assert page.status_code == 403
            assert "ann may not see the console: the permission evsched.view_console is missing" in page.text


async def test_browser_without_a_session_is_sent_to_the_login(people: People) -> None:
    async with people.nobody() as browser:
        for path in ("/jobs?q=task%3Aa+b", "/live/", "/sign-in", "/nothing"):
            assert signs_in(await browser.get(path), path)
        assert signs_in(await browser.send("/act/pause", proof="", queue="mails"), "")
        assert (await browser.http.get("/jobs")).headers["location"] == "/jobs/"
        for file in ("console.css", "console.js"):
            assert (await browser.get(f"/static/{file}")).status_code == 200, "it has no secrets"


def sign_out(name: str, cookie: str) -> None:
    client = Client(headers={"host": "console"})
    client.cookies[settings.SESSION_COOKIE_NAME] = cookie
    assert client.post("/admin/logout/").status_code in (200, 302)


def set_password(name: str, cookie: str) -> None:
    user = User.objects.get(username=name)
    user.set_password("another")
    user.save()


END: dict[str, Callable[[str, str], Any]] = {
    "signed out": sign_out,
    "session expired": lambda name, cookie: Session.objects.update(expire_date=timezone.now()),
    "password changed": set_password,
    "deactivated": lambda name, cookie: User.objects.update(is_active=False),
    "not staff": lambda name, cookie: User.objects.update(is_staff=False),
    "deleted": lambda name, cookie: User.objects.all().delete(),
    "permission revoked": lambda name, cookie: User.objects.get().user_permissions.clear(),
}


@pytest.mark.parametrize("end", END)
async def test_end_of_the_right_counts_from_the_next_request_on(
    people: People, queue: str, raw: Any, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_BEAT", 0.05)
    seed(raw, queue)
    async with people.signed_in("ann", "operate_console") as ann:
        proof = await ann.proof(f"/queue?name={queue}")
        async with people.stream(ann, f"/queue?name={queue}") as stream:
            assert await stream.regions()
            await in_site(END[end], "ann", ann.http.cookies["sessionid"])
            last = ""
            async with asyncio.timeout(PATIENCE):
                while (text := await stream.chunk()) is not None:
                    last = text
            assert "event: ended" in last
        for answer in (await ann.get("/"), await ann.send("/act/pause", proof=proof, queue=queue)):
            assert answer.status_code == (403 if end == "permission revoked" else 302)
    assert people.consoles.audited(queue) == []


async def test_forged_forms_are_refused(people: People, queue: str, raw: Any) -> None:
    seed(raw, queue)
    async with people.signed_in("ann", "operate_console") as ann, people.signed_in("eve", "operate_console") as eve:
        proof = await ann.proof(f"/queue?name={queue}")
        forged = [
            await ann.send("/act/pause", proof="", queue=queue),
            await ann.send("/act/pause", proof=await eve.proof(f"/queue?name={queue}"), queue=queue),
            *[
                await ann.http.post("/jobs/act/pause", data={"proof": proof, "queue": queue}, headers=sent)
                for sent in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"})
            ],
        ]
        assert [answer.status_code for answer in forged] == [403] * 4
        assert people.consoles.audited(queue) == []
        assert (await ann.send("/act/pause", proof=proof, queue=queue)).status_code == 303


async def test_host_that_the_site_does_not_allow_is_refused(people: People) -> None:
    async with people.signed_in("ann", "operate_console", base="http://evil.example") as ann:
        assert (await ann.get("/")).status_code == 400


async def test_cookies_that_the_site_renews_reach_the_browser(people: People) -> None:
    async with people.signed_in("ann", "view_console") as ann:
        with override_settings(SESSION_SAVE_EVERY_REQUEST=True):
            assert "sessionid" in (await ann.get("/queue?name=mails")).headers["set-cookie"]
            assert "set-cookie" not in (await ann.get("/static/console.css")).headers, "caches may share it"
        before = ann.http.cookies["sessionid"]
        with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
            assert "ann, viewer" in (await ann.get("/")).text
            assert ann.http.cookies["sessionid"] != before, "the site replaces sessions of the old key"
            assert "ann, viewer" in (await ann.get("/")).text


async def test_index_of_the_admin_leads_to_the_console(people: People) -> None:
    async with people.signed_in("ann", "view_console") as ann, people.signed_in("bob", "change_user") as bob:
        assert f'href="{ENTRY}"' in (await ann.http.get("/admin/")).text
        for page, target in {
            "": "/jobs/",
            "/job?id=1": "/jobs/job?id=1",
            "//evil.example": "/jobs//evil.example",
            "https://evil.example": "/jobs/",
        }.items():
            answer = await ann.http.get(ENTRY, params={"page": page})
            assert (answer.status_code, answer.headers["location"]) == (302, target)
        for path in ("add/", "1/change/", "1/delete/", "1/history/"):
            assert (await ann.http.get(ENTRY + path)).status_code in (302, 403), path
        assert ENTRY not in (await bob.http.get("/admin/")).text
        assert (await bob.http.get(ENTRY)).status_code == 403


def below(app: Any, root: str) -> Any:
    """Serve an application below a path, as a server that was given it."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root}, receive, send)

    return answer


@pytest.mark.parametrize("by", ["server", "setting"])
@pytest.mark.parametrize("asked", [pytest.param("/shop", id="whole path"), pytest.param("", id="proxy strips it")])
async def test_site_below_a_path(people: People, by: str, asked: str) -> None:
    if by == "server":
        people.app = below(people.app, "/shop")
    with override_settings(FORCE_SCRIPT_NAME="/shop" if by == "setting" else None):
        if by == "setting":
            people.app = with_console()
        async with people.signed_in("ann", "view_console") as ann, people.nobody() as nobody:
            for _ in range(2):  # Django sets the prefix for what runs after a request
                location = (await nobody.http.get(f"{asked}/jobs/")).headers["location"]
                assert location.startswith("/shop/admin/login/?next=/shop/admin/")
                page = (await ann.http.get(f"{asked}/jobs/queue?name=mails")).text
                assert {*re.findall(r'(?:href|src|action)="(/\w*/\w*)', page)} == {"/shop/jobs"}
            assert (await ann.http.get(f"{asked}{ENTRY}")).headers["location"] == "/shop/jobs/"
            assert (await ann.http.get(f"{asked}/jobs")).headers["location"] == "/shop/jobs/"
            assert (await ann.http.get(f"{asked}/jobs/static/console.css")).status_code == 200
        if by == "setting":
            await people.app.state.console.close()


async def test_middleware_of_the_site_has_the_last_word(people: People) -> None:
    async with people.signed_in("ann", "operate_console") as ann:
        with override_settings(MIDDLEWARE=[f"{__name__}.ask_for_a_second_factor", *settings.MIDDLEWARE]):
            people.app = with_console()
        async with people.nobody() as browser:
            browser.http.cookies = ann.http.cookies
            answer = await browser.get("/")
            assert (answer.status_code, answer.headers["location"]) == (302, "/second-factor/")
        await people.app.state.console.close()


def ask_for_a_second_factor(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        get_response(request)
        return HttpResponseRedirect("/second-factor/")

    return middleware


async def test_while_debug_is_on_the_login_has_its_style(site: str) -> None:
    with override_settings(DEBUG=True), consoles(site) as found:
        app = with_console()
        async with app.router.lifespan_context(app), found.browser(app) as browser:
            assert (await browser.get("/static/admin/css/login.css")).status_code == 200


async def test_site_of_the_program_that_mounts_the_console(people: People) -> None:
    async def site(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await Response("the site")(scope, receive, send)

    paths = list[str]()
    people.app = with_console(site)
    async with people.nobody() as browser:
        assert (await browser.http.get("/about")).text == "the site"
        assert (await browser.get("/")).text == "the site", "nobody has answered who it is"
    assert paths == ["/about", ENTRY]
    await people.app.state.console.close()


def test_settings_without_a_path_or_an_admin_are_refused(site: str) -> None:
    with (
        override_settings(TASKS={"default": {**of_site.TASKS["default"], "OPTIONS": {}}}),
        pytest.raises(ConfigError, match='have no "console"'),
    ):
        with_console()
    covering = {**of_site.TASKS["default"], "OPTIONS": {"console": "/admin/"}}
    with (
        override_settings(TASKS={"default": covering}),
        pytest.raises(ConfigError, match="would cover /admin/, a page of the admin"),
    ):
        with_console()
    with override_settings(ROOT_URLCONF=()), pytest.raises(ConfigError, match="no admin"):
        with_console()
    with (
        modify_settings(INSTALLED_APPS={"remove": ["django.contrib.admin"]}),
        pytest.raises(SystemCheckError, match=r"evsched\.E008"),
    ):
        call_command("check")


def test_sign_in_act_and_sign_out_at_the_process(
    site: str, database: Path, tmp_path: Path, queue: str, raw: Any
) -> None:
    seed(raw, queue)
    make_user("ann", "operate_console")
    place = Site(site, tmp_path, SITE_FILE=str(database))
    with place.running("console", "--port", "0") as log:
        url, path, _ = log.until("ConsoleStarted")["url"].partition("/jobs/")
        assert path == "/jobs/", "the log has the address of the console"
        with httpx.Client(base_url=url, timeout=PATIENCE, follow_redirects=True) as browser:
            page = browser.get("/jobs/queue", params={"name": queue})
            assert page.url.path == "/admin/login/"
            form = {**Found(page.text).fields, "username": "ann", "password": "secret"}
            page = browser.post(str(page.url), data=form)
            assert (page.url.path, page.url.params["name"]) == ("/jobs/queue", queue)
            assert "ann, operator" in page.text
            page = browser.post("/jobs/act/pause", data={"proof": Found(page.text).fields["proof"], "queue": queue})
            assert f"Queue {queue} is paused" in page.text
            token = Found(browser.get("/admin/").text).fields["csrfmiddlewaretoken"]
            assert browser.post("/admin/logout/", data={"csrfmiddlewaretoken": token}).status_code == 200
            assert browser.get("/jobs/").url.path == "/admin/login/"
    with consoles(site) as found:
        assert found.audited(queue) == [("ann", "console", "pause")]
