"""Scheduling a request or message that no worker could send is refused."""

from __future__ import annotations

from typing import Any

import pytest

from evsched import App, BadArguments
from evsched.client.new_job import new_job

pytestmark = pytest.mark.anyio

URL = "https://api.example.com/invoices"


@pytest.fixture
def app() -> App:
    return App("redis://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"url": "api.example.com"}, "the url does not begin with http:// or https://"),
        ({"url": "http://a b/"}, "the url has a character that cannot be sent"),
        ({"url": "http://user:pw@a.example/"}, "the url has a user or a password"),
        ({"url": URL, "method": "FETCH"}, "argument 'method'"),
        ({"url": URL, "headers": {"Host": "a"}}, "a payload may not set the header host"),
        ({"url": URL, "headers": {"a": "\n"}}, "the value of the header a is not valid"),
        ({"url": URL, "body": "x", "json": 1}, "the request has a body and json"),
        ({"url": URL, "sign": "orders"}, "sign is not the name of a secret: it has A-Z, 0-9 and _ alone"),
        ({"url": URL, "sign": ""}, "sign is not the name of a secret"),
        ({"url": URL, "sign": "bad name"}, "sign is not the name of a secret"),
    ],
)
async def test_a_request_that_cannot_be_sent_is_refused_when_it_is_scheduled(
    app: App, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadArguments, match=r"^task evsched.http: ") as refused:
        await app.http.enqueue(**arguments)
    assert reason in str(refused.value)
    with pytest.raises(BadArguments, match=r"^call 1: task evsched.http: "):
        await app.http.enqueue_many([(URL,), app.http.arguments(**arguments)])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"to": "orders"}, "`to` is not a destination"),
        ({"to": "queue:orders"}, "a queue needs the name of its broker"),
        ({"to": "stream:evsched:x"}, "evsched's own"),
        ({"to": "exchange@rabbit:é"}, "messages cannot be sent to exchange"),
        ({"to": "list:orders", "most": 9}, "a list has no option most: only stream has"),
        ({"to": "exchange@rabbit:e", "routing_key": "x" * 256}, "routing_key has 256 bytes"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_refused_when_it_is_scheduled(
    app: App, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadArguments, match=r"^task evsched.forward: ") as refused:
        await app.forward.enqueue(**arguments, message=1)
    assert reason in str(refused.value)


@pytest.mark.parametrize(("task", "arguments"), [("evsched.http", {"url": "a"}), ("evsched.forward", {"to": "a"})])
def test_a_job_of_a_task_that_is_known_by_name_is_checked_too(task: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(BadArguments, match=f"^task {task}: "):
        new_job(task, (), {"message": 1, **arguments} if task == "evsched.forward" else arguments, {})
    assert new_job("send", (), arguments, {}).payload


async def test_a_recurrence_of_a_request_that_cannot_be_sent_is_refused(app: App) -> None:
    with pytest.raises(BadArguments, match="the url does not begin with"):
        app.recurring(every=60, kwargs={"url": "a.example"})(app.http)
