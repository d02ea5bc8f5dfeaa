"""The store of the search: a Redis of its own, whose whole state is saved and restored around each call.

A call takes three commands in one pipeline: restore the state, make the call, save the state. Restoring and saving are
Lua scripts of a few lines, because a state has ten keys and a command for each would cost more than the call. A call in
a state that is known with that call is not made again.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

import hiredis

from evsched.transport.address import parse
from evsched.transport.call import Call, seldom, through_rare
from evsched.transport.embedded import EmbeddedRedis


class Clock(NamedTuple):
    """The time: that which all clocks of monotonic time show, and how far the server's clock has been set."""

    epoch: int = 0
    step: int = 0
    """The step of time within the epoch."""
    ahead: int = 0
    """Epochs by which the server's clock is ahead; negative = behind."""

    def set(self, epochs: int) -> Clock:
        """Return the time after the server's clock has been set ahead or back."""
        return self._replace(ahead=self.ahead + epochs)


ROOT: Final = "evsched:{q}:"
"""The prefix of the queue's keys."""
BASE: Final = 1_900_000_000
"""The Unix time of epoch 0."""
EPOCH: Final = 20.0
"""Seconds of an epoch: longer than the lease of a worker that holds jobs."""
STEP: Final = 0.03125
"""Seconds of a step; it and its half are exact as doubles and in six decimals."""

NOW: Final = "0.123456"
"""Stands for the time in a call until the call is made: a script reads Redis's clock when it runs."""

_SAVE: Final = """
local found = {}
local names = redis.call('KEYS', '*')
table.sort(names)
for _, name in ipairs(names) do
  local kind, one = redis.call('TYPE', name).ok
  local counts = name:find('}:hour:', 1, true)
  if kind == 'stream' then -- the ends in the history, by id and outcome, whatever their times and order
    one = {}
    for _, entry in ipairs(redis.call('XRANGE', name, '-', '+')) do
      for _, row in ipairs(cjson.decode(entry[2][8])) do one[#one + 1] = row[1] .. ' ' .. entry[2][2] end
    end
    table.sort(one)
  elseif kind == 'hash' then
    redis.call('HDEL', name, 'runs') -- the runs that were: they decide nothing
    local flat, fields = redis.call('HGETALL', name), {}
    for i = 1, #flat, 2 do fields[#fields + 1] = { flat[i], flat[i + 1] } end
    table.sort(fields, function(a, b) return a[1] < b[1] end)
    one = {}
    for _, pair in ipairs(fields) do one[#one + 1] = pair[1]; one[#one + 1] = pair[2] end
  elseif kind == 'zset' then one = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then one = redis.call('SMEMBERS', name); table.sort(one)
  elseif kind == 'list' then one = redis.call('LRANGE', name, 0, -1)
  else one = { redis.call('GET', name) } end
  if not counts then found[#found + 1] = { name, kind, redis.call('PTTL', name) > 0 and '1' or '', one } end
end
return { cmsgpack.pack(found), found }
"""

_RESTORE: Final = """
redis.call('FLUSHDB')
for _, key in ipairs(cmsgpack.unpack(ARGV[1])) do
  local name, kind, expires, one = key[1], key[2], key[3], key[4]
  if kind == 'hash' then redis.call('HSET', name, unpack(one))
  elseif kind == 'zset' then
    for i = 1, #one, 2 do redis.call('ZADD', name, one[i + 1], one[i]) end
  elseif kind == 'set' then redis.call('SADD', name, unpack(one))
  elseif kind == 'list' then redis.call('RPUSH', name, unpack(one))
  elseif kind == 'stream' then
    for n, row in ipairs(one) do
      local id, outcome = row:match('^(%S+) (%S+)$')
      local jobs = '[["' .. id .. '",[""],null,null,0]]'
      redis.call('XADD', name, n .. '-0', 'outcome', outcome, 'worker', '', 'ended', '9e9', 'jobs', jobs)
    end
  else redis.call('SET', name, one[1]) end
  if expires == '1' then redis.call('PEXPIRE', name, 3000000) end
end
return 1
"""

_TIME: Final = re.compile(r"19\d{8}(?:\.\d+)?")
"""A Unix time in a state."""

_HAND_OVER: Final = ("dispatch", "complete", "requeue")
"""The scripts that put jobs into ready, as the scenes of the hand-over call them."""

_REFUSALS: Final = ("LATE", "MISSING", "RUNNING", "EXISTS", "MOVING", "CHANGED")
_PIPELINE: Final = 300
"""Commands sent together."""


class Snapshot:
    """The state of a queue. The names of its keys are without the prefix; those of other queues have it."""

    __slots__ = ("keys", "packed", "text")

    def __init__(self, packed: bytes, keys: Any) -> None:
        self.packed = packed
        self.keys = {
            key[0].decode().removeprefix(ROOT): (key[1].decode(), key[2] == b"1", [item.decode() for item in key[3]])
            for key in keys
        }
        self.text = [f"{name}{content}" for name, content in self.keys.items()]

    def pairs(self, name: str) -> dict[str, str]:
        """Return the fields of a hash, or the members of a sorted set with their scores; {} if there is no such key."""
        flat = self.keys.get(name, ("", False, []))[2]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def items(self, name: str) -> list[str]:
        """Return the items of a list; [] if there is no such key."""
        return self.keys.get(name, ("", False, []))[2]


class SavedRedis:
    """A server whose state is saved and restored.

    `changes`: (verb, text of its script, text instead), to break scripts; "*" = all verbs that have the text.
    """

    def __init__(self, changes: Sequence[tuple[str, str, str]] = ()) -> None:
        self._changes = changes
        self._server = EmbeddedRedis(save="", appendonly="no")
        self._shas: dict[str, bytes] = {}
        self._done: dict[tuple[bytes, tuple[Any, ...]], tuple[Snapshot, Any]] = {}
        self._snapshots: dict[bytes, Snapshot] = {}
        self.hands_over = False
        """Scripts hand over jobs, and so start them."""
        self.made = 0
        """How many calls were made; the others were known."""

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(parse(self._server.url).options["path"]))
        self._reader = hiredis.Reader()
        self._save, self._restore = self._pipeline([("SCRIPT", "LOAD", _SAVE), ("SCRIPT", "LOAD", _RESTORE)])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._server.__exit__(kind, error, trace)

    def setup(self, commands: Sequence[tuple[Any, ...]]) -> Snapshot:
        """Return the state after some commands on an empty server."""
        *replies, saved = self._pipeline([("FLUSHALL",), *commands, ("EVALSHA", self._save, 0)])
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return Snapshot(*saved)

    def make(self, calls: Sequence[tuple[Snapshot, Call[Any], Clock]]) -> list[tuple[Snapshot, Any]]:
        """Make each call in its state at its time; return the states after them, and the replies."""
        keys = [(snapshot.packed, self._words(call, clock)) for snapshot, call, clock in calls]
        missing = {key: call for key, (_, call, _) in zip(keys, calls, strict=True) if key not in self._done}
        self.made += len(missing)
        commands = list[tuple[Any, ...]]()
        for packed, words in missing:
            commands += [("EVALSHA", self._restore, 0, packed), words, ("EVALSHA", self._save, 0)]
        replies = list[Any]()
        for at in range(0, len(commands), _PIPELINE):
            replies += self._pipeline(commands[at : at + _PIPELINE])
        for i, (key, call) in enumerate(missing.items()):
            restored, reply, saved = replies[3 * i : 3 * i + 3]
            if isinstance(restored, Exception):
                raise restored
            if isinstance(reply, Exception) and not str(reply).startswith(_REFUSALS):
                raise reply
            read = f"refused: {reply}" if isinstance(reply, Exception) else call.read(reply)
            packed, found = saved
            if packed not in self._snapshots:
                self._snapshots[packed] = Snapshot(packed, found)
            self._done[key] = self._snapshots[packed], read
        return [self._done[key] for key in keys]

    def change(self, changes: Sequence[tuple[str, str, str]]) -> None:
        """Change scripts, before their first calls."""
        self._changes = (*self._changes, *changes)

    def changed(self, verb: str, source: str) -> str:
        """Return the text of a script with its changes."""
        rare = seldom(source)
        for changed, *texts in self._changes:
            old, new = [through_rare(text, rare) for text in texts] if rare and texts[0] not in source else texts
            assert old in source or changed != verb, f"{verb} has no such text: {old}"
            if changed in (verb, "*"):
                source = source.replace(old, new)
        return source

    def name(self, call: Call[Any]) -> str:
        """Return a call as a path shows it."""
        words = [str(word) for word in call.words if word != NOW]
        if call.script is None:
            return " ".join(words)
        return f"{call.script.name} {' '.join(word for word in words[2:] if len(word) < 60)}"

    def later(self, clock: Clock, call: Call[Any]) -> Clock:
        """Return when a call is made. Time moves within an epoch only when jobs are started, which is compared."""
        starts = ("start", *(_HAND_OVER if self.hands_over else ()))
        return clock._replace(step=clock.step + (call.script is not None and call.script.name in starts))

    def ranked(self, text: str, clock: Clock) -> str:
        """Replace each time in a text by its rank: what happens depends on which is earlier, and not on by how much.

        That is exact if no two times are compared with an offset between the steps of an epoch and an epoch.
        """
        now = unix(clock)
        times = sorted(set(map(float, _TIME.findall(text))))
        rank = {value: f"t{i}" for i, value in enumerate(times)}
        past = sum(value <= now for value in times)
        return f"{past}/{clock.epoch}/{clock.ahead}|" + _TIME.sub(lambda found: rank[float(found[0])], text)

    def _words(self, call: Call[Any], clock: Clock) -> tuple[Any, ...]:
        moment = f"{unix(clock):.6f}"
        words = tuple(moment if word == NOW else word for word in call.words)
        return words if call.script is None else ("EVALSHA", self._sha(call), *words)

    def _sha(self, call: Call[Any]) -> bytes:
        script = call.script
        assert script is not None
        if script.sha not in self._shas:
            source = self.changed(script.name, script.source)
            (sha,) = self._pipeline([("SCRIPT", "LOAD", source)])
            if isinstance(sha, Exception):
                raise sha
            self._shas[script.sha] = sha
        return self._shas[script.sha]

    def _pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        pack: Callable[[tuple[Any, ...]], bytes] = cast(Any, hiredis).pack_command
        self._socket.sendall(b"".join(map(pack, commands)))
        replies = list[Any]()
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 20))
            else:
                replies.append(reply)
        return replies


def unix(clock: Clock) -> float:
    """Return the Unix time of the server's clock. After it was set, no moment of an epoch is shown a second time."""
    return BASE + (clock.epoch + clock.ahead) * EPOCH + (clock.step + clock.ahead / 2) * STEP
