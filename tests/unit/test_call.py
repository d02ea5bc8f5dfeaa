"""A call as a value: its words before and after Redis has forgotten the script, and how replies are read."""

from __future__ import annotations

from hashlib import sha1

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from evsched.errors import ConfigError, StoreDown, StoreRefused
from evsched.jobs.job import Buried, Done, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import Call, Script, folder, script, text, texts
from evsched.transport.redis_errors import link_error, translate

RUN = FetchedJob("a", 2, 1.0, b"{}", run="2 1.000000")


def test_a_plain_command_is_sent_as_it_is() -> None:
    call = Call(("GET", "key"), text)
    assert call.by_sha() == call.by_source() == ("GET", "key")


def test_a_script_goes_by_its_sha_then_by_its_source() -> None:
    call = Call((1, "root", "x"), text, Script("verb", "return 1", "abc"))
    assert call.by_sha() == ("EVALSHA", "abc", 1, "root", "x")
    assert call.by_source() == ("EVAL", "return 1", 1, "root", "x")


def test_the_sha_is_that_of_the_source_and_the_flags_come_first() -> None:
    for path in folder().glob("[a-z]*.lua"):
        found = script(path.stem)
        assert found.sha == sha1(found.source.encode()).hexdigest()
        assert found.source.startswith("#!lua"), path
        assert found.source.count("#!lua") == 1, path


def test_every_verb_has_one_key_the_root() -> None:
    store = Store("mail")
    calls = [
        store.enqueue([New("a", b"{}")]),
        store.dispatch(limit=1, cap=1),
        store.start("w", ["a"], hold=1, lease=1),
        store.complete("w", [(RUN, Done(b"1", 0.0, False))]),
        store.retry("w", [(RUN, Retried(1.0, "x"))]),
        store.bury("w", [(RUN, Buried("x", False))]),
        store.requeue("w", "x"),
        store.heartbeat("w", 1.0),
        store.cancel("a"),
        store.reschedule("a", None),
        store.revive(["a"]),
        store.drop(["a"]),
        store.look("a"),
        store.ask("a"),
        store.survey(),
        store.reopen("night"),
    ]
    assert {call.words[:2] for call in calls} == {(1, "evsched:{mail}:")}
    assert len({call.script for call in calls}) == len(calls)


def test_numbers_lose_nothing_on_the_way() -> None:
    store = Store("mail")
    assert store.enqueue([New("a", b"{}", due=1900000000.123457)]).words[-2:] == ("1900000000.123457", "0.0")
    assert store.at(1.5).enqueue([New("a", b"{}", priority=0, delay=1e-6)]).words == (
        *(1, "evsched:{mail}:", "1.500000", "", "", "", "", "", "", ""),
        *("a", b"{}", 0, "", "", "1e-06"),
    )
    done = store.complete("w", [(RUN, Done(b"7", 0.0, True))])
    assert done.words[3:] == ("w", "", "", "1", "a", "2 1.000000", b"7", "0", "1", b'[""]')


def test_replies_that_are_not_utf8_show_as_escapes() -> None:
    assert texts([b"a", b"\xff", "\u20ac".encode()]) == ["a", "\\xff", "\u20ac"]


@pytest.mark.parametrize("name", ["", "a b", "{q}", "q\n", "x" * 201, "\u00fc"])
def test_a_store_needs_a_valid_queue_name(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 200"):
        Store(name)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MovedError("5718 127.0.0.1:7502"), "moved"),
        (AskError("5718 127.0.0.1:7502"), "moving"),
        (TryAgainError("TRYAGAIN Multiple keys"), "moving"),
        (ClusterDownError("CLUSTERDOWN Hash slot not served"), "clusterdown"),
    ],
)
def test_errors_of_an_unavailable_slot_are_retryable(error: ResponseError, kind: str) -> None:
    found = translate(error)
    assert isinstance(found, StoreDown)
    assert found.kind == kind
    assert str(error) in str(found)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("Timeout reading from socket", "Redis at 10.0.0.1:6379: Timeout reading from socket"),
        ("Error 111 connecting to 10.0.0.1:6379. Refused", "Redis: Error 111 connecting to 10.0.0.1:6379. Refused"),
    ],
)
def test_an_error_of_a_connection_names_the_node_of_a_cluster_once(problem: str, message: str) -> None:
    for error in (TimeoutError(problem), ConnectionError(problem)):
        found = link_error(error, ("10.0.0.1", 6379))
        assert isinstance(found, StoreDown)
        assert (str(found), found.node) == (message, ("10.0.0.1", 6379))
        assert str(link_error(error, None)) == f"Redis: {problem}"


def test_crossslot_error_suggests_the_cluster_url_form() -> None:
    found = translate(ResponseError("CROSSSLOT Keys in request don't hash to the same slot"))
    assert isinstance(found, StoreRefused)
    assert "redis+cluster://" in str(found)


@pytest.mark.parametrize(
    "message",
    [
        "Attempted to access a non local key in a cluster node script: 5c1f, on @x:2.",
        "Command 'time' in script attempted to access keys that don't hash to the same slot script: 5c1f, on @x:2.",
    ],
)
def test_a_node_that_refuses_all_scripts_is_to_be_restarted(message: str) -> None:
    found = translate(ResponseError(message))
    assert isinstance(found, StoreRefused)
    assert "restart it" in str(found)
    assert "5c1f" not in str(found)
