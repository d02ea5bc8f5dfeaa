"""Which shards a queue has, where a job's home is, and how limits are divided."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

from evsched import App
from evsched.errors import ConfigError
from evsched.shards import MOST, NONE, Shards
from evsched.store.gate_limits import shown


def test_queue_without_shards_consists_of_itself() -> None:
    assert (NONE.all_of("mail"), NONE.home("mail", "a"), NONE.whole("mail:3")) == (["mail"], "mail", "mail:3")


def test_queue_with_shards_consists_of_them_and_itself() -> None:
    shards = Shards({"mail": 3})
    assert shards.all_of("mail") == ["mail:0", "mail:1", "mail:2", "mail"]
    assert [shards.whole(name) for name in ("mail", "mail:0", "mail:2", "mail:3", "other:0")] == [
        *("mail", "mail", "mail"),
        *("mail:3", "other:0"),
    ]
    assert shards.all_of("mail:1") == ["mail:1"]


def test_the_home_of_a_job_is_the_shard_that_the_crc_32_of_its_id_names() -> None:
    shards = Shards({"mail": 12})
    assert shards.home("mail", "report-17") == f"mail:{crc32(b'report-17') % 12}" == "mail:4"
    spread = Counter(shards.home("mail", f"job-{number}") for number in range(12_000))
    assert len(spread) == 12
    assert max(spread.values()) < 1.2 * min(spread.values())


def test_known_shard_counts_only_grow() -> None:
    shards = Shards({"mail": 4})
    assert shards.may_lack("mail:7")
    shards.grow({"mail": 8, "sms": 2})
    shards.grow({"mail": 2})
    assert (shards.counts, shards.whole("mail:7")) == ({"mail": 8, "sms": 2}, "mail")
    assert not shards.may_lack("mail:7")
    assert not shards.may_lack("mail")


def test_limits_are_divided_among_the_shards_and_the_queue() -> None:
    shards = Shards({"mail": 3})
    limits = {"concurrency": 10.0, "rate": 2.0, "burst:alice": 4.0, "weight:alice": 3.0}
    parts = [shards.divide(limits, queue) for queue in shards.all_of("mail")]
    assert [part["concurrency"] for part in parts] == [3.0, 3.0, 2.0, 2.0]
    assert [part["rate"] for part in parts] == [0.5] * 4
    assert [part["burst:alice"] for part in parts] == [1.0] * 4
    assert [part["weight:alice"] for part in parts] == [3.0] * 4
    assert shards.divide(limits, "other") == limits


def test_a_limit_of_origins_lets_one_job_of_each_pass_in_every_shard() -> None:
    """It has a default, which must not keep a worker of many shards from starting."""
    shards = Shards({"targets": 12})
    few, many = {"concurrency:origin:*": 4.0}, {"concurrency:origin:*": 64.0}
    assert [shards.divide(few, queue) for queue in shards.all_of("targets")] == [{"concurrency:origin:*": 1.0}] * 13
    assert sum(shards.divide(many, queue)["concurrency:origin:*"] for queue in shards.all_of("targets")) == 64


@pytest.mark.parametrize("field", ["concurrency", "burst", "concurrency:*", "concurrency:task:report"])
def test_a_limit_that_is_too_small_to_be_divided_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"limit {field.replace('*', '.')} of queue mail is 3: .* at least 4"):
        Shards({"mail": 3}).divide({field: 3.0}, "mail:1")


@pytest.mark.parametrize("count", [-1, MOST + 1, 1.5, "12", True, None])
def test_invalid_number_of_shards_is_refused(count: object) -> None:
    with pytest.raises(ConfigError, match="shards is"):
        App(queue="mail", shards=count)  # type: ignore[arg-type]


def test_a_name_must_have_room_for_the_names_of_its_shards() -> None:
    with pytest.raises(ConfigError, match="too long"):
        App(queue="m" * 196, shards=2)
    App(queue="m" * 195, shards=MOST)
    App(queue="m" * 200)


def test_an_app_may_name_the_shards_of_several_queues() -> None:
    app = App(queue="mail", shards={"mail": 4, "sms": 2})
    assert app.shards.counts == {"mail": 4, "sms": 2}


def test_a_name_that_is_that_of_a_shard_cannot_have_shards() -> None:
    with pytest.raises(ConfigError, match="ord:1 is the name of a shard of queue ord"):
        App(queue="ord", shards={"ord": 3, "ord:1": 2})
    App(queue="ord", shards={"ord": 0, "ord:1": 2})


def test_shards_beyond_the_present_number_are_recognized() -> None:
    shards = Shards({"mail": 3, "sms": 0})
    names = ["mail:2", "mail:10", "mail:3", "mail:03", "mail:x", "mail", "mail:9999", "sms:0", "post:1"]
    assert shards.beyond("mail", names) == ["mail:3", "mail:10"]
    assert shards.beyond("sms", names) == ["sms:0"]
    assert shards.beyond("post", names) == []
    assert [name for name in names if shards.is_beyond(name)] == ["mail:10", "mail:3", "sms:0"]


@pytest.mark.parametrize(("whole", "sum_of_parts"), [(74297.0, 74297.0), (10.0, 10.0), (2.0, 4.0), (0.0, 0.0)])
def test_history_is_divided_exactly_and_each_part_keeps_one(whole: float, sum_of_parts: float) -> None:
    shards = Shards({"mail": 3})
    parts = [shards.divide({"history": whole}, queue)["history"] for queue in shards.all_of("mail")]
    assert sum(parts) == sum_of_parts
    assert (min(parts) > 0) is (whole > 0)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("history", 1234567.0, "1234567"),
        ("concurrency", 1e6, "1000000"),
        ("rate", 0.5, "0.5/s"),
        ("rate", 1e6, "1000000/s"),
    ],
)
def test_limit_is_shown_with_all_its_digits(name: str, value: float, text: str) -> None:
    assert shown(name, value) == text
