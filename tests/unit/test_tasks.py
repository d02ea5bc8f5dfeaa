"""A task: the parts read from its function's signature, and the overrides of a payload."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest

from evsched import App, EndedJob
from evsched.client.task_handle import TaskHandle
from evsched.errors import ConfigError, UnknownTask
from evsched.jobs.job import Payload, RetryFields, decode_payload
from evsched.jobs.redaction import REDACTED, redacted, redacted_member
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import DEFAULT_TIMEOUT, Hook, Hooks, TaskOptions, Tasks, check_task_options, define


class Address(msgspec.Struct):
    street: str
    numbers: list[int]


async def deliver(to: Address, /, weight: float = 1.0, *, express: bool = False) -> int:
    return len(to.street) + int(weight) + express


async def nothing() -> None: ...


def anything(*values: int, **named: str) -> None: ...


def first(a: int, /, **named: int) -> None: ...


def untyped(a: Any, b: object = None) -> Any:
    return a, b


def bind(handler: Any, *args: Any, **kwargs: Any) -> Any:
    return define(handler).bind(Payload("t", list(args), kwargs))


def test_the_signature_is_read_once() -> None:
    task = define(deliver)
    assert (task.name, task.on, task.signature.returns) == ("deliver", "loop", int)
    assert (task.timeout, task.retention, task.retry) == (DEFAULT_TIMEOUT, None, Retry())
    assert (task.signature.required, sorted(task.signature.named)) == (frozenset({"to"}), ["express", "weight"])
    assert define(anything).on == "thread"


def test_arguments_are_bound_as_annotated_types() -> None:
    assert bind(deliver, {"street": "s", "numbers": [1]}, weight=2, express=True) == (
        [Address("s", [1])],
        {"weight": 2.0, "express": True},
    )
    assert bind(anything, 1, 2, a="x") == ([1, 2], {"a": "x"})
    assert bind(first, 1, a=2) == ([1], {"a": 2})
    assert bind(untyped, {"as": "it is"}, b=[1]) == ([{"as": "it is"}], {"b": [1]})


GOOD = {"street": "s", "numbers": [1]}


MISFITS: list[tuple[Any, list[Any], dict[str, Any], str]] = [
    (deliver, [], {}, "deliver needs 'to' - at `$.args`"),
    (deliver, [], {"to": GOOD}, "deliver needs 'to' - at `$.args`"),
    (deliver, [GOOD], {"to": GOOD}, "deliver takes no 'to' - at `$.kwargs.to`"),
    (first, [], {"a": 1}, "first needs 'a' - at `$.args`"),
    (deliver, [GOOD, 1.0, True], {}, "deliver takes 2 arguments, got 3 - at `$.args`"),
    (deliver, [GOOD, "x"], {}, "Expected `float`, got `str` - at `$.args[1]`"),
    (deliver, [{"street": "s", "numbers": [1, "2"]}], {}, "Expected `int`, got `str` - at `$.args[0].numbers[1]`"),
    (deliver, [{"numbers": []}], {}, "Object missing required field `street` - at `$.args[0]`"),
    (deliver, [GOOD, 1.0], {"weight": 2.0}, "deliver got 'weight' twice - at `$.kwargs.weight`"),
    (deliver, [GOOD], {"wieght": 2.0}, "deliver takes no 'wieght', did you mean 'weight'? - at `$.kwargs.wieght`"),
    (deliver, [GOOD], {"express": 1}, "Expected `bool`, got `int` - at `$.kwargs.express`"),
    (anything, [1, "x"], {}, "Expected `int`, got `str` - at `$.args[1]`"),
    (anything, [], {"a": 1}, "Expected `str`, got `int` - at `$.kwargs.a`"),
]


@pytest.mark.parametrize(("handler", "args", "kwargs", "message"), MISFITS)
def test_the_error_for_each_misfit_names_the_argument(
    handler: Any, args: list[Any], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        bind(handler, *args, **kwargs)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "5"}, "timeout is '5': give a number of seconds, more than 0, or None for no limit"),
        ({"timeout": float("inf")}, "None for no limit"),
        ({"retention": -1}, "retention is -1"),
        ({"retention": float("nan")}, "retention is nan"),
        ({"retention": None}, "retention is None"),
        ({"retry": 5}, "retry is 5: give a Retry"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 201}, "1 to 200"),
        ({"name": ""}, "1 to 200"),
        ({"name": 5}, "name is 5: give 1 to 200"),
        ({"concurrency": 0}, "concurrency is 0: give a whole number, 1 or more"),
        ({"concurrency": 2.5}, "concurrency is 2.5: give a whole number"),
        ({"queue": "a b"}, "queue is 'a b': give 1 to 200 of"),
        ({"on": "proces"}, "on is 'proces', did you mean 'process'[?]"),
        ({"on_dead": "alert"}, "on_dead is 'alert': give a task of this app, such as a function under @app.task"),
        ({"on_done": deliver}, "on_done is <function deliver"),
        ({"on_done": App().task(deliver)}, "on_done: task deliver does not take one argument, an EndedJob: Object"),
        ({"on_done": App().task(nothing)}, "takes 0 arguments, got 1"),
    ],
)
def test_an_option_that_is_not_valid_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_task_options(TaskOptions(**options))


def test_a_task_with_a_concurrency_has_a_name_that_a_group_may_have() -> None:
    assert define(deliver, name="a}b").concurrency is None
    for name in ("a}b", "x" * 196):
        with pytest.raises(ConfigError, match="to have limits, it needs a name of at most 195 bytes, without `}`"):
            define(deliver, name=name, concurrency=1)
    with pytest.raises(ConfigError, match="concurrency is 1000001, must be from 1 to 1,000,000"):
        define(deliver, concurrency=1_000_001)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({}, "declares nothing"),
        ({"rate": "5/s"}, "rate is '5/s': give a number"),
        ({"rate": 0}, "rate is 0: must be from"),
        ({"concurrency": 1.5}, "concurrency is 1.5: must be a whole number"),
        ({"concurrency": True}, "concurrency is True: give a number"),
        ({"weight": 2}, "weight is the share of a group"),
        ({"weight": 2, "group": "*"}, "weight compares a group"),
        ({"weight": 2, "group": "task:t"}, "weight compares a group"),
        ({"rate": 2, "group": "a}b"}, "group is 'a}b'"),
        ({"rate": 2, "group": "alice"}, "limit rate:alice of queue default is declared twice"),
    ],
)
def test_a_limit_in_code_that_is_not_valid_is_refused(limit: dict[str, Any], words: str) -> None:
    app = App()
    app.limit(group="alice", rate=5)
    app.limit("other", group="alice", rate=5)
    with pytest.raises(ConfigError, match=words):
        app.limit(**limit)
    assert app.program.limits == [("default", "rate:alice", 5), ("other", "rate:alice", 5)]


def test_a_hook_is_a_task_of_the_same_app_that_takes_the_ended_job() -> None:
    app, other = App(), App()

    @app.task
    async def alert(ended: EndedJob) -> None: ...

    @app.task
    async def note(ended: Any, more: int = 0) -> None: ...

    task = app.task(name="pay", on_done=note, on_dead=alert)(deliver).task
    assert task.hooks == Hooks(Hook("note", "pay"), Hook("alert", "pay"))
    assert app.task(name="refund", on_dead=alert)(deliver).task.hooks == Hooks(None, Hook("alert", "refund"))
    assert app.task(name="look", on_dead=None)(deliver).task.hooks is None
    with pytest.raises(ConfigError, match="task pay: its hook alert is not a task of the same app"):
        other.task(name="pay", on_dead=alert)(deliver)


def test_annotations_that_cannot_be_read_are_refused() -> None:
    def handler(a: int) -> None: ...

    handler.__annotations__["a"] = "Nowhere"
    with pytest.raises(ConfigError, match="Nowhere"):
        define(handler)


def test_the_retry_fields_of_a_payload_override_the_tasks_policy() -> None:
    task = define(deliver, retry=Retry(attempts=5, interval=1.0))
    assert task.policy(Payload("t")) is task.retry
    assert task.policy(Payload("t", retry=RetryFields(attempts=2))) == Retry(attempts=2, interval=1.0)
    with pytest.raises(ConfigError, match="factor is 0"):
        task.policy(Payload("t", retry=RetryFields(factor=0.5)))


def test_the_error_for_an_unknown_task_lists_the_known_ones() -> None:
    tasks = Tasks()
    with pytest.raises(UnknownTask, match="this worker has none"):
        tasks.find("os.system")
    for n in range(12):
        tasks.add(define(deliver, name=f"task{n:02}"))
    with pytest.raises(UnknownTask, match=r"'task00', .* and 2 more"):
        tasks.find("zzz")
    with pytest.raises(UnknownTask) as caught:
        tasks.find("x" * 1_000_000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("evsched.http", "evsched worker evsched.targets:app --http-host HOST --queue targets"),
        ("evsched.forward", "evsched worker evsched.targets:app --forward-destination KIND:NAME --queue targets"),
        ("evsched.htpp", "evsched has the tasks evsched.http and evsched.forward: correct the name"),
    ],
)
def test_the_error_for_an_unknown_task_of_evsched_names_its_worker(name: str, words: str) -> None:
    tasks = Tasks()
    tasks.add(define(lambda: None, name="pay"))
    with pytest.raises(UnknownTask, match="this worker has 'pay'") as caught:
        tasks.find(name)
    assert words in str(caught.value)
    assert "@app.task" not in str(caught.value), "an app may not register it"


def bind_json(payload: bytes, handler: Any) -> Any:
    return define(handler).bind(decode_payload(payload))


def test_arguments_are_converted_to_the_annotations() -> None:
    def handler(at: datetime, *more: int, flag: bool = False) -> None: ...

    args, kwargs = bind_json(b'{"task":"t","args":["2030-01-01T00:00:00Z",1,2],"kwargs":{"flag":true}}', handler)
    assert (args, kwargs) == ([datetime(2030, 1, 1, tzinfo=UTC), 1, 2], {"flag": True})


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"task":"t","args":["x"]}', r"Expected `int`, got `str` - at `\$\.args\[0\]`"),
        (b'{"task":"t","args":[1,["x"]]}', r"at `\$\.args\[1\]\[0\]`"),
        (b'{"task":"t","args":[1,[],3]}', "takes 2 arguments, got 3"),
        (b'{"task":"t"}', "needs 'a'"),
        (b'{"task":"t","args":[1],"kwargs":{"a":1}}', "got 'a' twice"),
        (b'{"task":"t","args":[1],"kwargs":{"bb":1}}', "did you mean 'b'"),
        (b'{"task":"t","args":[1],"kwargs":{"b":7}}', r"at `\$\.kwargs\.b`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_path(payload: bytes, words: str) -> None:
    def handler(a: int, b: list[int] | None = None) -> None: ...

    with pytest.raises(msgspec.ValidationError, match=words):
        bind_json(payload, handler)


def test_tasks_are_found_by_name_alone() -> None:
    tasks = Tasks()
    tasks.add(define(lambda: None, name="send_mail"))
    with pytest.raises(UnknownTask, match="did you mean 'send_mail'"):
        tasks.find("send_mial")
    with pytest.raises(ConfigError, match="registered twice"):
        tasks.add(define(lambda: None, name="send_mail"))


def test_a_task_has_a_second_name_by_its_handler() -> None:
    app = App()

    @app.task
    async def charge(cents: int) -> int:
        return cents

    with pytest.raises(ConfigError, match="charge is a task already: to give it a second name, register its `handler`"):
        app.task(name="bill")(charge)
    app.task(name="bill")(charge.handler)
    assert [*app.tasks] == ["charge", "bill"]


def charge(amount: int, card: Literal["4111"], *, note: Literal["4222"] = "4222") -> None: ...


def test_redacted_parameters_are_named_by_position_too() -> None:
    assert define(charge, redact=("card", "note")).redact == ("card", "note", "2")
    with pytest.raises(
        ConfigError, match="redact names 'crad', which is not one of its parameters: amount, card, note"
    ):
        define(charge, redact=("crad",))


def pay(order: int, card: str, *notes: str, pin: str = "", **more: str) -> None: ...


def lookup(key: str, /, **more: str) -> None: ...


@pytest.mark.parametrize(
    ("redact", "args", "kwargs", "expected"),
    [
        (["card"], (1, "4111"), {}, ("2",)),
        (["card"], (1,), {"card": "4111"}, ("card",)),
        (["2"], (1, "4111"), {}, ("2",)),
        (["2"], (1,), {"card": "4111", "pin": "0"}, ("card",)),
        (["1", "card"], (1, "4111"), {}, ("1", "2")),
        (["pin"], (1, "4111"), {}, ()),
        (["notes"], (1, "4111", "a", "b"), {}, ("3", "4")),
        (["4"], (1, "4111", "a", "b"), {}, ("4",)),
        (["more"], (1,), {"card": "4111", "pin": "0", "other": "1", "more": "2"}, ("other", "more")),
        (["other"], (1,), {"card": "4111", "other": "1", "third": "1"}, ("other",)),
        (["krad"], (1,), {"card": "4111"}, ("1", "card")),
        (["02"], (1,), {"card": "4111"}, ("1", "card")),
    ],
)
def test_redacted_arguments_of_a_call_are_named_as_they_are_passed(
    redact: list[str], args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert define(pay).signature.redacted(redact, len(args), kwargs) == expected


def test_argument_that_only_looks_like_a_redacted_one_is_hidden_too() -> None:
    assert define(lookup).signature.redacted(["key"], 1, {"key": "a"}) == ("1", "key")


@pytest.mark.parametrize(
    ("handler", "redact", "words"),
    [
        (charge, ("crad",), "which is not one of its parameters: amount, card, note, did you mean 'card'"),
        (charge, ("99",), "redact has position 99, and the task takes 2: amount, card, note"),
        (charge, ("notes",), "redact names 'notes', which is not one of its parameters"),
        (lookup, ("2",), "redact has position 2, and the task takes 1: key"),
    ],
)
def test_redacted_argument_that_the_task_does_not_take_is_refused(
    handler: Any, redact: tuple[str, ...], words: str
) -> None:
    app = App("redis://127.0.0.1:1")
    with pytest.raises(ConfigError, match=re.escape(words)):
        TaskHandle[..., Any](app, define(handler)).using(redact=redact)
    with pytest.raises(ConfigError, match=re.escape(words)):
        define(handler, redact=redact)


@pytest.mark.parametrize("of_task", [True, False])
@pytest.mark.parametrize(
    ("call", "path"),
    [({"args": [1, "5555"]}, "args[1]"), ({"args": [1], "kwargs": {"card": "5555", "note": "4222"}}, "kwargs.card")],
)
def test_message_about_a_redacted_argument_has_no_value(call: dict[str, Any], path: str, of_task: bool) -> None:
    task = define(charge, redact=("card", "note") if of_task else ())
    payload = {"task": "charge", **call} | ({} if of_task else {"redact": ["card", "2"]})
    with pytest.raises(msgspec.ValidationError) as caught:
        task.bind(decode_payload(msgspec.json.encode(payload)))
    assert str(caught.value) == f"Invalid value of a redacted argument - at `$.{path}`"
    assert caught.value.__context__ is None


def test_arguments_are_printed_without_redacted_values() -> None:
    task = TaskHandle[..., Any](App("redis://127.0.0.1:1"), define(charge, redact=("card", "note")))
    assert repr(task.arguments(1, "4111", note="4222")) == "Arguments(1, [redacted], note=[redacted])"


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ({"args": [1, 2], "kwargs": {"card": 3}}, {"args": [1, 2], "kwargs": {"card": 3}}),
        ({"args": [1, 2], "redact": ["2"]}, {"args": [1, REDACTED], "redact": ["2"]}),
        (
            {"kwargs": {"card": [4], "a": 1}, "redact": ["card"]},
            {"kwargs": {"card": REDACTED, "a": 1}, "redact": ["card"]},
        ),
        ({"args": [1], "redact": "card"}, {"args": REDACTED, "kwargs": REDACTED, "redact": "card"}),
        ({"args": [1], "redact": [1]}, {"args": REDACTED, "kwargs": REDACTED, "redact": [1]}),
        ({"args": "x", "kwargs": 5, "redact": ["1"]}, {"args": REDACTED, "kwargs": REDACTED, "redact": ["1"]}),
        # The task is not known: a name may be that of any position, and a position beyond the args of any name.
        ({"args": [1, 2], "redact": ["card"]}, {"args": [REDACTED, REDACTED], "redact": ["card"]}),
        ({"args": [1, 2], "redact": ["1", "card"]}, {"args": [REDACTED, REDACTED], "redact": ["1", "card"]}),
        (
            {"args": [1], "kwargs": {"a": 2, "b": 3}, "redact": ["2"]},
            {"args": [1], "kwargs": {"a": REDACTED, "b": REDACTED}, "redact": ["2"]},
        ),
        (
            {"args": [1], "kwargs": {"a": 2, "b": 3}, "redact": ["b", "krad"]},
            {"args": [REDACTED], "kwargs": {"a": 2, "b": REDACTED}, "redact": ["b", "krad"]},
        ),
        (
            {"args": [1], "kwargs": {"a": 2}, "redact": ["02"]},
            {"args": [REDACTED], "kwargs": {"a": REDACTED}, "redact": ["02"]},
        ),
        ({"args": {}, "kwargs": [], "redact": ["card"]}, {"args": {}, "kwargs": [], "redact": ["card"]}),
        ('{"kwargs":{"card":1},"redact":["card"]', REDACTED),
        ("{no json", "{no json"),
        ([1], [1]),
        (None, None),
    ],
)
def test_readers_get_no_redacted_values(payload: Any, shown: Any) -> None:
    assert redacted(payload) == shown


@pytest.mark.parametrize(
    ("member", "shown"),
    [
        ("a-1", "a-1"),
        ('{"task": "t"}', '{"task": "t"}'),
        ('{"task":"t","args":["4111"],"redact":["1"]}', '{"task":"t","args":["[redacted]"],"redact":["1"]}'),
        ('{"args":["4111"],"\\u0072edact":["1"]}', '{"args":["[redacted]"],"redact":["1"]}'),
        ('{"args":["4111"],"redact":["1"]', REDACTED),
    ],
)
def test_member_of_an_inline_job_is_shown_without_redacted_values(member: str, shown: str) -> None:
    assert redacted_member(member) == shown
