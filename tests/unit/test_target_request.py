"""The parts of a request that a payload describes, before and after a redirect, and its signature."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest
from msgspec import UNSET

from evsched import CurrentJob, GiveUp
from evsched.client.target_tasks import TargetRequest, read_request
from evsched.targets.http_task import read_secrets, redirected, signature

URL = "https://shop.example/a/b?c"


def read(method: Any = "POST", body: str | None = None, json: Any = UNSET, **headers: str) -> TargetRequest:
    return read_request(URL, method, {name.replace("_", "-"): value for name, value in headers.items()}, body, json)


@pytest.mark.parametrize(
    ("given", "content", "kind"),
    [
        ({"json": {"a": "ü"}}, '{"a":"ü"}'.encode(), "application/json"),
        ({"json": None}, b"null", "application/json"),
        ({"json": 1, "Content_Type": "application/x"}, b"1", "application/x"),
        ({"body": "ü"}, "ü".encode(), "text/plain; charset=utf-8"),
        ({"body": ""}, b"", "text/plain; charset=utf-8"),
        ({}, b"", None),
    ],
)
def test_a_body_has_a_type(given: dict[str, Any], content: bytes, kind: str | None) -> None:
    request = read(**given)
    assert (request.content, request.headers.get("content-type")) == (content, kind)


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "connection", "Upgrade", "TE", "proxy-authorization", "webhook-id"],
)
def test_a_header_that_evsched_writes_is_refused(name: str) -> None:
    with pytest.raises(GiveUp, match=f"a payload may not set the header {name.lower()}"):
        read_request(URL, "GET", {name: "hidden"}, None)


@pytest.mark.parametrize("value", ["hidden\n", "hidden\r\nx: y", "hid\0den", " hidden", "hidden\t", "hiddén"])
def test_the_value_of_a_header_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(GiveUp, match="the value of the header x-a is not valid") as error:
        read_request(URL, "GET", {"X-A": value}, None)
    assert "hidd" not in str(error.value)


@pytest.mark.parametrize("value", ["", "a", "a b", "a\tb", "!~", '"a"; b=c'])
def test_other_values_of_headers_are_sent(value: str) -> None:
    assert read_request(URL, "GET", {"X-A": value}, None).headers == {"x-a": value}


def test_a_header_that_is_there_twice_is_refused() -> None:
    with pytest.raises(GiveUp, match="the header x-a is there twice"):
        read_request(URL, "GET", {"X-A": "1", "x-a": "2"}, None)


@pytest.mark.parametrize(
    ("location", "path", "headers"),
    [
        ("d", "/a/d", {"x", "content-type", "content-secret"}),
        ("/d?e", "/d?e", {"x", "content-type", "content-secret"}),
        ("?e", "/a/b?e", {"x", "content-type", "content-secret"}),
        ("HTTPS://Shop.Example:443/d", "/d", {"x", "content-type", "content-secret"}),
        ("https://other.example/d", "/d", {"content-type"}),
        ("https://shop.example:444/d", "/d", {"content-type"}),
    ],
)
def test_a_redirect_keeps_headers_for_the_same_origin_alone(location: str, path: str, headers: set[str]) -> None:
    after = redirected(read(json=1, **{"X": "y", "Content-Secret": "z"}), 308, location)
    assert (after.target.path, after.headers.keys(), after.content) == (path, headers, b"1")


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        *((status, "POST", "GET") for status in (301, 302, 303)),
        *((status, "POST", "POST") for status in (307, 308)),
        *((status, "HEAD", "HEAD") for status in (301, 302, 303, 307, 308)),
        *((status, "DELETE", "DELETE") for status in (301, 302, 307, 308)),
        (303, "DELETE", "GET"),
    ],
)
def test_method_changes_after_a_redirect_as_specified(status: int, method: str, then: str) -> None:
    after = redirected(read(method, body="a", X="y"), status, "/d")
    assert after.method == then
    assert after.content == (b"a" if method == then else b"")
    assert ("content-type" in after.headers) is (method == then)


def test_a_redirect_must_not_leave_tls() -> None:
    with pytest.raises(GiveUp, match=r"redirects to http://shop\.example, without TLS"):
        redirected(read(), 307, "http://shop.example/hidden")


KEY = bytes(range(24))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


def test_a_signature_is_that_of_the_specification() -> None:
    job = CurrentJob("a.b", "mail", "evsched.http", 2, 1700000000.0, 1690000000.5, 1.75, {})
    signed = signature(read_secrets({"EVSCHED_SECRET_A": f" {SECRET}  {SECRET[6:]} ", "A": "x"}), "A", job, b'{"a":1}')
    message = "msg_" + hashlib.sha256(b"mail a.b:1690000000.500000").hexdigest()[:32]
    digest = hmac.new(KEY, f'{message}.1700000001.{{"a":1}}'.encode(), hashlib.sha256).digest()
    one = f"v1,{base64.b64encode(digest).decode()}"
    assert signed == {
        "webhook-id": message,
        "webhook-timestamp": "1700000001",
        "webhook-signature": f"{one} {one}",
    }
