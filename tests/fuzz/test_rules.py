"""Each rule of the arena fails when a script breaks it."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from msgspec.structs import replace

from evsched.transport import call
from evsched.transport.call import Script
from evsched.transport.embedded import EmbeddedRedis
from tests.fuzz import arena as arena_module
from tests.fuzz.arena import Arena, Broken
from tests.fuzz.sequences import NOW, ROOT, Sequence, Step

NOW_WORD = b"%d" % NOW
RUN = b"1 %d.000000" % NOW
END = Step("complete", (NOW_WORD, b"w", b"", b"", b"1", b"running", RUN, b"1", b"300", b"", b'["t"]'))
CANCEL = Step("cancel", (NOW_WORD, b"", b"", b"scheduled", b""))

BROKEN: dict[str, tuple[str, str, str, Step, str]] = {
    "an error that no header names": (
        "complete",
        "local now, worker",
        "local _ = nil .. ''\nlocal now, worker",
        END,
        "complete fails: .*attempt to concatenate a nil value",
    ),
    "a failure of Lua code at garbage": (
        "complete",
        "local now, worker",
        "local _ = nil .. ''\nlocal now, worker",
        END,
        "complete fails: .*attempt to concatenate a nil value",
    ),
    "a write before a refusal": (
        "cancel",
        "return fail('MISSING'",
        "redis.call('SET', root .. 'x', 1)\nreturn fail('MISSING'",
        Step("cancel", (NOW_WORD, b"", b"", b"nobody", b"")),
        "cancel writes before it is refused: MISSING",
    ),
    "a write before garbage is refused": (
        "retry",
        "return end_runs(",
        "redis.call('SET', root .. 'x', 1)\nrefuse('delay', 'good')\nreturn end_runs(",
        Step("retry", (NOW_WORD, b"w")),
        "retry writes before it is refused: the argument delay is not good",
    ),
    "a job that is lost": (
        "cancel",
        "local places, next_waited",
        "redis.call('DEL', record('good-5'))\nredis.call('ZREM', schedule, 'good-5')\nlocal places, next_waited",
        CANCEL,
        "good-5 is lost",
    ),
    "a script that takes long": (
        "cancel",
        "local places, next_waited",
        "for _ = 1, 3e7 do end\nlocal places, next_waited",
        CANCEL,
        "cancel takes .* ms of Redis's time",
    ),
}


@pytest.fixture
def arena(server: EmbeddedRedis) -> Generator[Arena]:
    with Arena(server.server) as arena:
        yield arena


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Return a function that changes the text of a script for the arena's users."""

    def change(verb: str, text: str, instead: str) -> None:
        found = call.script(verb)
        assert text in found.source
        changed = replace(found, source=instead.join(found.source.rsplit(text, 1)), sha="0" * 40)

        def script(name: str) -> Script:
            return changed if name == verb else call.script(name)

        monkeypatch.setattr(arena_module, "script", script)

    return change


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_script_is_found(arena: Arena, broken: Callable[[str, str, str], None], rule: str) -> None:
    verb, text, instead, step, why = BROKEN[rule]
    sequence = Sequence("client", "garbage" in rule, (step,))
    arena.run(sequence)
    broken(verb, text, instead)
    with pytest.raises(Broken, match=why):
        arena.run(sequence)


def test_user_with_wider_rights_than_redis_conf_gives_is_found(arena: Arena) -> None:
    arena.grant("observer", "+@all", "~*")
    with pytest.raises(Broken, match="the user observer has written"):
        arena.run(Sequence("observer", False, (CANCEL,)))
    arena.grant("client", "~evsched:{*}:*")
    other = Step("", (b"SET", ROOT.replace(b"fuzz", b"other") + b"job:a", b"x"))
    with pytest.raises(Broken, match="another queue or key was changed"):
        arena.run(Sequence("client", False, (other,)))
