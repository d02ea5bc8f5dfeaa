"""The settings: which source wins, and that each error names the setting as the user wrote it."""

from __future__ import annotations

import pytest

from evsched.config import RANGES, SETTINGS, Config, variable
from evsched.environment import as_environment, load, warning
from evsched.errors import ConfigError


def test_without_variables_the_settings_are_the_defaults() -> None:
    assert load({}) == Config()
    assert load({"PATH": "/bin", "EVSCHED_TEST_SERVER": "valkey"}) == Config()


def test_flag_overrides_the_environment_unless_it_is_none() -> None:
    environment = {"EVSCHED_URL": "redis://a:1/2", "EVSCHED_CONCURRENCY": "10"}
    found = load(environment, url="redis://b:1/0", concurrency=None)
    assert (found.url, found.concurrency) == ("redis://b:1/0", 10)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_can_come_from_the_environment(name: str) -> None:
    default = getattr(Config(), name)
    given: dict[str, tuple[str, object]] = {"queues": ("a,b", ("a", "b")), "metrics_port": ("9100", 9100)}
    given |= {"log_level": ("debug", "DEBUG"), "http_hosts": ("a,b:1", ("a", "b:1"))}
    given["http_networks"] = ("10.0.0.0/8", ("10.0.0.0/8",))
    given["forward_destinations"] = ("stream:a,list:b", ("stream:a", "list:b"))
    given["console_name"] = ("mail production", "mail production")
    given |= dict.fromkeys(("codec", "console_site"), ("shop:app", "shop:app"))
    given["ledger_url"] = ("postgresql:///a", "postgresql:///a")
    given |= {"api_open_hosts": ("a,b", ("a", "b")), "lease": ("3", 3.0)}
    given |= {
        "console_proxies": ("10.0.0.7", ("10.0.0.7",)),
        "console_users": ("a=admin,*=viewer", ("a=admin", "*=viewer")),
    }
    given |= {f"api_{kind}_tokens": ("a,b", ("a", "b")) for kind in ("read", "write", "work")}
    value, expected = given.get(name, (str(default), default))
    assert getattr(load({f"EVSCHED_{name.upper()}": value}), name) == expected


def test_queues_may_have_weights() -> None:
    found = load({"EVSCHED_QUEUES": "mail=3,bulk,a:b=0.5"})
    assert (found.queues, found.weights) == (("mail", "bulk", "a:b"), {"mail": 3.0, "a:b": 0.5})
    found = load({"EVSCHED_QUEUES": "mail:3,mail:4=1,a:-1"})
    assert (found.queues, found.weights) == (("mail:3", "mail:4", "a:-1"), {})
    assert Config().weights == {}


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(
            url="redis://a:1/2",
            queues=("a", "b"),
            concurrency=3,
            metrics_port=9100,
            shutdown_grace=0.2,
            kill_grace=0.25,
        ),
        Config(queues=("a", "b:2", "c:-1"), weights={"a": 2.5}),
        Config(http_hosts=("a", "*.b:1"), http_networks=("fd00::/8",), http_redirects=3),
        Config(api_read_tokens=("a", "b"), api_write_tokens=("file:/run/secrets/a",)),
        Config(lease=3.0, heartbeat=0.5, batch=7),
    ],
)
def test_settings_survive_a_round_trip_through_the_environment(config: Config) -> None:
    assert load(as_environment(config)) == config


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"concurrency": 0}, "EVSCHED_CONCURRENCY is 0: a whole number from 1 to 999"),
        ({"concurrency": 1000}, "EVSCHED_CONCURRENCY is 1000: a whole number from 1 to 999"),
        ({"batch": 0}, "EVSCHED_TEST_BATCH is 0: a whole number from 1 to 999"),
        ({"lease": 0.0}, "EVSCHED_LEASE is 0.0: a number of seconds from 0.01 to 86400"),
        ({"queues": ("a", "b c")}, "queue 'b c'"),
        ({"queues": ("a", "a=2")}, "queue 'a' is named twice"),
        ({"queues": ("a=0",)}, "a weight is from 0.001 to 1000"),
        ({"queues": ("a:0.5",)}, "queue 'a:0.5': a weight is written a=0.5"),
        ({"queues": ("a=-1",)}, "queue 'a=-1': a weight is from 0.001 to 1000"),
        ({"queues": ("a=",)}, "queue 'a=': a weight is from 0.001 to 1000"),
        ({"queues": ("=2",)}, "a queue's name is empty"),
        *(({"queues": (f"a={text}",)}, "a weight is from") for text in ("-0", "+2", ".5", "1e3", "nan", "-inf")),
        ({"queues": ("", "")}, "a queue's name is empty"),
        ({"concurrency": "many"}, "EVSCHED_CONCURRENCY is 'many': a whole number from 1 to 999"),
        ({"shutdown_grace": "soon"}, "EVSCHED_SHUTDOWN_GRACE is 'soon': a number of seconds from 0 to 86400"),
        ({"log_jobs": "often"}, "EVSCHED_LOG_JOBS is 'often': give true or false"),
        ({"log_level": "loud"}, "EVSCHED_LOG_LEVEL is 'LOUD': one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ({"colour": 1}, "unknown field `colour`"),
    ],
)
def test_a_value_that_is_not_valid_is_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load({}, **flags)


@pytest.mark.parametrize("name", [name for name in SETTINGS if isinstance(getattr(Config(), name), int | float)])
def test_every_number_has_a_range(name: str) -> None:
    assert (name in RANGES) != isinstance(getattr(Config(), name), bool)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in RANGES for value in ("nan", "inf", "-inf", "-1", "1e300")),
        *((name, "0") for name, allowed in RANGES.items() if allowed.least > 0),
        ("payload_cap", "-5"),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_its_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable(name)} is .*from [0-9.]+ to [0-9]+") as error:
        load({variable(name): value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["metrics_host", "api_host"])
def test_an_empty_address_is_refused_since_it_would_mean_all_addresses(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^EVSCHED_{name.upper()} is empty: write the address"):
        load({f"EVSCHED_{name.upper()}": ""})


def test_both_ends_of_a_range_are_allowed() -> None:
    for name, (least, most) in RANGES.items():
        found = [getattr(load({variable(name): str(end)}), name) for end in (least, most)]
        assert found == [least, most]


def test_a_variable_that_is_not_a_setting_is_ignored_and_named() -> None:
    environment = {"EVSCHED_ZZZZZZ": "1", "EVSCHED_CONCURENCY": "3", "EVSCHED_LEASE": "7", "PATH": "/bin"}
    assert load(environment) == Config(lease=7.0)
    shown = warning(environment)
    assert shown is not None
    assert shown.endswith("ignored: EVSCHED_CONCURENCY (did you mean EVSCHED_CONCURRENCY?), EVSCHED_ZZZZZZ")
    known = {"EVSCHED_LEASE": "7", "EVSCHED_TEST_SERVER": "valkey", "EVSCHED_SECRET_ORDERS": "whsec_"}
    known["EVSCHED_FORWARD_URL_RABBIT"] = "amqp://localhost/"
    assert warning(known) is None


def test_variables_of_kubernetes_services_change_nothing() -> None:
    environment = {
        "EVSCHED_PORT": "tcp://10.0.0.1:6379",
        "EVSCHED_SERVICE_HOST": "10.0.0.1",
        "EVSCHED_SERVICE_PORT": "6379",
        "EVSCHED_PORT_6379_TCP": "tcp://10.0.0.1:6379",
        "EVSCHED_PORT_6379_TCP_ADDR": "10.0.0.1",
        "EVSCHED_REDIS_SERVICE_HOST": "10.0.0.1",
        "EVSCHED_REDIS_SERVICE_PORT_REDIS": "6379",
        "EVSCHED_METRICS_PORT": "tcp://10.0.0.1:9090",
    }
    assert load(environment) == Config()
    shown = warning(environment)
    assert shown is not None
    assert "8 that Kubernetes sets for a Service" in shown
    assert "did you mean" not in shown


def test_a_warning_names_every_variable() -> None:
    variables = [f"EVSCHED_{name * 7}" for name in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    shown = warning(dict.fromkeys(variables, ""))
    assert shown is not None
    assert shown.endswith(", ".join(variables))


@pytest.mark.parametrize(
    ("variable", "instead"),
    [
        ("EVSCHED_HEARTBEAT", "evsched lease SECONDS"),
        ("EVSCHED_KILL_GRACE", "it cannot be set any more"),
        ("EVSCHED_API_ALLOWED_HOSTS", "--open-host NAME"),
        ("EVSCHED_ORIGIN_CONCURRENCY", "evsched limit targets --group 'origin:*' --concurrency N"),
    ],
)
def test_a_warning_names_the_replacement_of_a_setting(variable: str, instead: str) -> None:
    shown = warning({variable: "5"})
    assert shown is not None
    assert instead in shown
    assert "did you mean" not in shown


def test_settings_come_from_flags_then_environment_then_defaults() -> None:
    found = load({"EVSCHED_LEASE": "30", "EVSCHED_QUEUES": "a,b", "PATH": "x"}, lease=None, concurrency=7)
    assert (found.lease, found.queues, found.concurrency) == (30.0, ("a", "b"), 7)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EVSCHED_LEASE", "soon", "EVSCHED_LEASE is 'soon'"),
        ("EVSCHED_CONCURRENCY", "1000", "from 1 to 999"),
        ("EVSCHED_PROCESS_POOL", "0", "from 1 to 999"),
        ("EVSCHED_QUEUES", ",", "a queue's name is empty"),
        ("EVSCHED_QUEUES", "a b", "a queue's name is"),
    ],
)
def test_a_setting_that_is_not_valid_is_refused_by_its_variable(variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load({variable: value})
