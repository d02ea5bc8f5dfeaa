"""The settings: who wins, and that each mistake is told by the name that the person wrote."""

from __future__ import annotations

import pytest

from evsched.config import Config, as_environment, load
from evsched.errors import ConfigError


def test_nothing_set_is_the_defaults() -> None:
    assert load({}) == Config()
    assert load({"PATH": "/bin", "EVSCHED_TEST_SERVER": "valkey"}) == Config()


def test_a_flag_wins_over_the_environment_and_none_is_no_flag() -> None:
    environment = {"EVSCHED_URL": "redis://a:1/2", "EVSCHED_BATCH": "10"}
    found = load(environment, url="redis://b:1/0", batch=None)
    assert (found.url, found.batch) == ("redis://b:1/0", 10)


@pytest.mark.parametrize("name", Config.__struct_fields__)
def test_every_setting_can_come_from_the_environment(name: str) -> None:
    default = getattr(Config(), name)
    given: dict[str, tuple[str, object]] = {"queues": ("a,b", ("a", "b")), "metrics_port": ("9100", 9100)}
    value, expected = given.get(name, (str(default), default))
    assert getattr(load({f"EVSCHED_{name.upper()}": value}), name) == expected


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(url="redis://a:1/2", queues=("a", "b"), concurrency=3, metrics_port=9100, grace=0.25),
    ],
)
def test_settings_go_through_an_environment(config: Config) -> None:
    assert load(as_environment(config)) == config


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 1000}, "more worker processes"),
        ({"batch": 1000}, "batch is 1000"),
        ({"lease": 10.0}, "lease is 10.0 s, beat 5.0 s"),
        ({"beat": 0.0}, "must outlive two beats"),
        ({"idle_lease": 1.0}, "idle_lease is 1.0 s"),
        ({"queues": ("a", "b c")}, "queue 'b c'"),
        ({"concurrency": "many"}, r"Expected `int`, got `str` - at `\$\.concurrency`"),
        ({"colour": 1}, "unknown field `colour`"),
    ],
)
def test_a_value_that_cannot_be_is_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load({}, **flags)


def test_a_variable_that_is_like_nothing_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"EVSCHED_ZZZZZZ is no setting of evsched$"):
        load({"EVSCHED_ZZZZZZ": "1"})
