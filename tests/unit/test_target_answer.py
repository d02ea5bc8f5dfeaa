"""The outcome of the job for each answer."""

from __future__ import annotations

import pytest

from evsched import GiveUp, RetryLater
from evsched.targets.intake import Answer, as_result, judge

DATE = "Sun, 22 Nov 2026 10:00:00 GMT"
NOW = 1795341610.0
"""Ten seconds later, by our clock."""


def answer(status: int, body: bytes = b"", *, whole: bool = True, **headers: str) -> Answer:
    return Answer(status, [(name.replace("_", "-"), value) for name, value in headers.items()], body, whole)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_success_is_done(status: int) -> None:
    judge(answer(status), "http://a", NOW)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 503, 511, 599])
def test_some_failures_are_tried_again(status: int) -> None:
    with pytest.raises(RetryLater, match=f"^http://a answered {status}") as error:
        judge(answer(status), "http://a", NOW)
    assert error.value.delay is None


@pytest.mark.parametrize("status", [101, 300, 302, 304, 400, 401, 403, 404, 409, 418, 451, 499, 600, 999])
def test_other_failures_are_not_tried_again(status: int) -> None:
    with pytest.raises(GiveUp, match=f"^http://a answered {status}.*not tried again: correct the request"):
        judge(answer(status), "http://a", NOW)


@pytest.mark.parametrize(
    ("after", "date", "delay"),
    [
        ("0", None, 0.0),
        (" 120 ", None, 120.0),
        ("86401", None, 86400.0),
        ("9" * 400, None, 86400.0),
        ("Sun, 22 Nov 2026 10:00:30 GMT", DATE, 30.0),
        ("Sunday, 22-Nov-26 10:00:30 GMT", DATE, 30.0),
        ("Sun Nov 22 10:00:30 2026", DATE, 30.0),
        ("Sun, 22 Nov 2026 09:00:00 GMT", DATE, 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DATE, 86400.0),
        ("Sun, 22 Nov 2026 10:00:30 GMT", None, 20.0),
        ("Sun, 22 Nov 2026 10:00:30 GMT", "soon", 20.0),
        ("Sun, 22 Nov 2026 10:00:00 GMT", None, 0.0),
        ("-1", DATE, None),
        ("1.5", DATE, None),
        ("1e3", DATE, None),
        ("\u0661", DATE, None),
        ("soon", DATE, None),
        ("Sun, 99 Nov 2026 10:00:30 GMT", DATE, None),
        ("", DATE, None),
    ],
)
def test_retry_after_header_sets_the_delay(after: str, date: str | None, delay: float | None) -> None:
    headers = [("retry-after", after), *([] if date is None else [("date", date)])]
    with pytest.raises(RetryLater) as error:
        judge(Answer(503, headers, b"", True), "http://a", NOW)
    assert error.value.delay == delay


@pytest.mark.parametrize(
    ("body", "whole", "text"),
    [
        ("aü".encode(), True, "aü"),
        ("aü".encode()[:-1], True, "a�"),
        ("aü".encode()[:-1], False, "a"),
        (b"\xff\xfea\x00", True, "��a\x00"),
        (b"", True, ""),
    ],
)
def test_any_body_is_decoded(body: bytes, whole: bool, text: str) -> None:
    found = as_result(answer(200, body, whole=whole, content_type="text/plain; charset=zlib"))
    assert (found.body, found.cut) == (text, not whole)


def test_headers_of_one_name_are_joined() -> None:
    found = as_result(Answer(200, [("a", "1"), ("b", "2"), ("a", "3")], b"", True))
    assert found.headers == {"a": "1, 3", "b": "2"}
