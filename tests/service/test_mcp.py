"""`evsched mcp`, asked by the client of the protocol's own package, over stdin and stdout."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest
from mcp import Client, StdioServerParameters

from evsched.mcp.tools import TOOLS, described
from tests.support.cli import Cli

pytestmark = pytest.mark.anyio

READS = ["list_queues", "find_jobs", "show_job", "explain", "history", "history_counts", "list_recurrences"]


@asynccontextmanager
async def connected(cli: Cli, *flags: str) -> AsyncGenerator[Client]:
    command, *words = cli.command("mcp", *flags)
    server = StdioServerParameters(command=command, args=words, env=cli.environment, cwd=cli.folder)
    async with Client(server) as client:
        yield client


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool, and return its result, which agrees with the text that older clients read."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]


def kill(cli: Cli, queue: str, raw: Any, job: str) -> None:
    """Have a job be dead: it has no payload that a worker could read."""
    raw.zadd(f"evsched:{{{queue}}}:dead", {job: 1_700_000_000})
    raw.hset(f"evsched:{{{queue}}}:job:{job}", mapping={"payload": '{"task":"t"}', "reason": "boom"})


async def test_model_reads_and_cannot_write_without_the_flag(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    secret = ("--arg", 'card="4111"', "--redact", "card")
    assert cli.run("enqueue", "charge", '"ana"', *secret, "--id", "later", "--in", "1h", *of).returncode == 0
    assert cli.run("recurrences", "add", "nightly", "report", "--rule", "@daily", *of).returncode == 0
    kill(cli, queue, raw, "gone")
    async with connected(cli) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {*READS, "show_limits", "doctor"}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
        (row,) = [row for row in (await ask(client, "list_queues"))["queues"] if row["queue"] == queue]
        assert (row["schedule"], row["dead"]) == (1, 1)
        found = await ask(client, "find_jobs", queue=queue)
        assert [(job["id"], job["place"]) for job in found["jobs"]] == [("later", "schedule"), ("gone", "dead")]
        assert [job["id"] for job in (await ask(client, "find_jobs", queue=queue, reason="BOOM"))["jobs"]] == ["gone"]
        job = await ask(client, "show_job", queue=queue, id="later")
        assert job["payload"]["kwargs"] == {"card": "[redacted]"}
        assert "due in" in (await ask(client, "explain", queue=queue, id="later"))["sentence"]
        recurrences = (await ask(client, "list_recurrences", queue=queue))["recurrences"]
        assert [one["name"] for one in recurrences] == ["nightly"]
        assert (await ask(client, "history", queue=queue))["jobs"] == []
        assert (await ask(client, "history_counts", queue=queue))["counts"] == []
        report = await ask(client, "doctor", queue=queue)
        assert report["queues"] == [queue]
        assert "level" in report["findings"][0]
        assert "4111" not in str([found, job, report])
        assert "--write" in await refusal(client, "cancel", queue=queue, id="later")
        assert "not-found" in await refusal(client, "show_job", queue=queue, id="none")
        assert "the argument id is missing: give the id of a job" in await refusal(client, "show_job", queue=queue)
        assert "no argument 'depth'" in await refusal(client, "show_job", queue=queue, id="later", depth=3)
        assert "Expected `int`" in await refusal(client, "find_jobs", queue=queue, limit="many")
    assert cli.json("show", "later", *of)["place"] == "schedule"


async def test_model_that_may_write_acts_in_its_queue_and_is_in_the_audit_trail(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    for job in ("first", "second"):
        assert cli.run("enqueue", "t", "--id", job, "--in", "1h", *of).returncode == 0
    assert cli.run("recurrences", "add", "nightly", "report", "--rule", "@daily", *of).returncode == 0
    kill(cli, queue, raw, "gone")
    async with connected(cli, "--write", "--as", "claude for ana", "--queue", queue) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {*TOOLS, "doctor"}
        assert (await ask(client, "run_now", queue=queue, id="first"))["due"] < 4e9
        assert await ask(client, "cancel", queue=queue, id="second") == {"done": True}
        assert await ask(client, "revive", queue=queue, ids=["gone"]) == {"changed": 1, "complete": True}
        assert (await ask(client, "pause_queue", queue=queue, why="the mail server is down"))["queue"] == queue
        assert (await ask(client, "list_queues"))["complete"]
        assert (await ask(client, "resume_queue", queue=queue))["since"] is not None
        assert await ask(client, "pause_recurrence", queue=queue, name="nightly") == {"done": True}
        assert await ask(client, "resume_recurrence", queue=queue, name="nightly") == {
            "name": "nightly",
            "recurs": True,
        }
        assert "not-found" in await refusal(client, "cancel", queue=queue, id="second")
        # It reaches no other queue.
        assert [row["queue"] for row in (await ask(client, "list_queues"))["queues"]] == [queue]
        assert "queue-not-allowed" in await refusal(client, "pause_queue", queue="other", why="")
        assert "queue-not-allowed" in await refusal(client, "doctor", queue="other")
        assert (await ask(client, "find_jobs"))["jobs"] == (await ask(client, "find_jobs", queue=queue))["jobs"] != []
        refused = await refusal(client, "find_jobs", queue="default")
        assert refused == f"queue-not-allowed: queue default is not served here: only {queue}"
    acts = cli.json("audit", *of)
    assert {(one["who"], one["from"]) for one in acts} == {("claude for ana", "mcp")}
    assert {"cancel", "revive", "pause", "resume"} <= {one["act"] for one in acts}


@pytest.mark.parametrize(
    ("queues", "default", "about"),
    [
        ((), "default", "The name of a queue."),
        (("mail",), "mail", "The name of a queue: mail."),
        (("mail", "default"), "default", "The name of a queue: mail or default."),
        (("mail", "orders"), None, "The name of a queue: mail or orders."),
    ],
)
def test_schemas_name_the_queues_and_the_one_that_is_meant_if_none_is_given(
    queues: tuple[str, ...], default: str | None, about: str
) -> None:
    tools = {tool.name: tool.inputs for tool in described(queues, write=False)}
    queue = tools["explain"]["properties"]["queue"]
    assert (queue.get("default"), queue["description"]) == (default, about)
    assert ("queue" in tools["explain"]["required"]) is (default is None)
    assert tools["doctor"]["properties"]["queue"]["description"] == about


async def test_a_server_of_several_queues_asks_for_one(cli: Cli, queue: str) -> None:
    async with connected(cli, "--queue", queue, "--queue", "other") as client:
        refused = await refusal(client, "explain", id="later")
    assert f"the argument queue is missing: give the name of a queue: {queue} or other" in refused


@pytest.mark.parametrize("tool", described(write=True), ids=lambda tool: tool.name)
def test_schemas_of_a_tool_are_valid(tool: Any) -> None:
    for schema in filter(None, (tool.inputs, tool.outputs)):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    assert tool.about


def test_missing_package_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    monkeypatch.delitem(sys.modules, "evsched.mcp.mcp_server", raising=False)
    done = cli.run("mcp")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'evsched[mcp]'" in done.stderr
