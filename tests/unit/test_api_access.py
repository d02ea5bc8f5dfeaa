"""Who may use the HTTP interface, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsched.api.access import Access, Bucket, Scope
from evsched.api.replies import Problem
from evsched.config import Config
from evsched.environment import load
from evsched.errors import ConfigError

READ, WRITE, WORK, BOTH = "r" * 20, "w" * 20, "k" * 20, "b" * 20


def config(rate: int = 1000, unknown: int = 1000) -> Config:
    return Config(
        api_read_tokens=(READ,),
        api_write_tokens=(WRITE, "x" * 20, BOTH),
        api_work_tokens=(WORK, BOTH),
        api_rate=rate,
        api_unknown_rate=unknown,
    )


def admit(access: Access, header: str | None, needs: Scope = "read", now: float = 0.0) -> int:
    """Return the status with which a request is refused; 200 = it is not."""
    try:
        access.admit(header, needs, now)
    except Problem as problem:
        return problem.status
    return 200


@pytest.mark.parametrize(
    ("header", "read", "write", "work"),
    [
        (f"Bearer {READ}", 200, 403, 403),
        (f"Bearer {WRITE}", 200, 200, 403),
        (f"bearer  {WRITE} ", 200, 200, 403),
        (f"Bearer {'x' * 20}", 200, 200, 403),
        (f"Bearer {WORK}", 403, 403, 200),
        (f"Bearer {BOTH}", 200, 200, 200),
        (None, 401, 401, 401),
        ("", 401, 401, 401),
        ("Bearer", 401, 401, 401),
        (f"Bearer {WRITE}x", 401, 401, 401),
        (f"Bearer {WRITE[:-1]}", 401, 401, 401),
        (f"Basic {WRITE}", 401, 401, 401),
        (WRITE, 401, 401, 401),
        (f"Bearer {READ},{WRITE}", 401, 401, 401),
        ("Bearer \udcff\x00", 401, 401, 401),
    ],
)
def test_token_allows_only_its_own_scope(header: str | None, read: int, write: int, work: int) -> None:
    access = Access(config())
    scopes: tuple[Scope, ...] = ("read", "write", "work")
    assert [admit(access, header, scope) for scope in scopes] == [read, write, work]


def test_an_open_api_needs_no_token() -> None:
    access = Access(Config(api_open_hosts=("localhost",), api_rate=1))
    assert admit(access, None, "write") == 200
    assert admit(access, f"Bearer {WRITE}", "write") == 429, "all callers share one bucket"


def test_requests_of_a_token_are_rate_limited() -> None:
    access = Access(config(rate=2))
    assert [admit(access, f"Bearer {READ}", now=10.0) for _ in range(3)] == [200, 200, 429]
    assert admit(access, f"Bearer {WRITE}", now=10.0) == 200, "each has its own"
    assert admit(access, f"Bearer {READ}", now=10.5) == 200
    with pytest.raises(Problem) as refused:
        access.admit(f"Bearer {READ}", "read", 10.5)
    assert refused.value.headers == {"Retry-After": "1"}


def test_token_guessing_is_limited_without_affecting_valid_tokens() -> None:
    access = Access(config(rate=2, unknown=3))
    guesses = [admit(access, f"Bearer guess-{n}-------------", now=5.0) for n in range(10)]
    assert guesses == [401] * 3 + [429] * 7
    assert admit(access, None, now=5.0) == 429
    assert admit(access, f"Bearer {WRITE}", now=5.0) == 200


def test_a_bucket_fills_up_to_one_second_of_its_rate() -> None:
    bucket = Bucket(4)
    assert [bucket.take(100.0) for _ in range(5)] == [0, 0, 0, 0, 0.25]
    assert [bucket.take(1e6) for _ in range(5)] == [0, 0, 0, 0, 0.25]
    assert bucket.take(1e6 - 5) == 0.25, "a clock that went back fills nothing"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Config(), "the API has no token"),
        (Config(api_write_tokens=("short",)), "EVSCHED_API_WRITE_TOKENS: token 1 is not valid"),
        (Config(api_read_tokens=(READ, "with a blank in the middle")), "EVSCHED_API_READ_TOKENS: token 2 is not valid"),
        (Config(api_write_tokens=(WRITE,), api_read_tokens=(READ, "")), "EVSCHED_API_READ_TOKENS: token 2 is not"),
        (Config(api_read_tokens=("",)), "the API has no token"),
        (Config(api_write_tokens=("",)), "the API has no token"),
        (Config(api_read_tokens=(READ,), api_write_tokens=(READ,)), "the same API token"),
        (Config(api_write_tokens=(WRITE,), api_open_hosts=("localhost",)), "leave out one of both"),
        (Config(api_open_hosts=("false",)), "'false' is not the name of a host"),
        (Config(api_open_hosts=("http://x",)), "'http://x' is not the name of a host"),
        (Config(api_open_hosts=("a:80",)), "'a:80' is not the name of a host"),
        (Config(api_write_tokens=("file:/nowhere/at/all",)), "/nowhere/at/all cannot be read: No such file"),
    ],
)
def test_tokens_that_are_not_valid_are_refused_and_not_shown(settings: Config, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        Access(settings)
    assert all(token not in str(error.value) for token in ("short", "blank", READ, WRITE))


def test_a_variable_that_is_empty_is_not_set() -> None:
    access = Access(load({"EVSCHED_API_WRITE_TOKENS": WRITE, "EVSCHED_API_READ_TOKENS": ""}))
    assert [admit(access, f"Bearer {token}", "write") for token in (WRITE, "")] == [200, 401]
    assert admit(Access(Config(api_open_hosts=("localhost",), api_read_tokens=("",))), None) == 200


def test_tokens_come_from_files_too(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# rotated in spring\n{WRITE}\n\n  {'n' * 20}  \n")
    access = Access(Config(api_read_tokens=(READ,), api_write_tokens=(f"file:{file}",)))
    assert [admit(access, f"Bearer {token}", "write") for token in (WRITE, "n" * 20, READ)] == [200, 200, 403]
    file.write_text(f"# rotated in spring\n\n{WRITE}\nshort\n")
    with pytest.raises(ConfigError, match=f"{file}, line 4: the token is not valid"):
        Access(Config(api_write_tokens=(f"file:{file}",)))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is not text"):
        Access(Config(api_write_tokens=(f"file:{file}",)))
