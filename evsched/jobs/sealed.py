"""Sealed values: arguments, results and other data that a codec has compressed, encrypted or put into a store.

The core knows no codec. It finds sealed values in payloads, results and steps, and asks the codec of the app to open
them; `evsched.codec` has one. A program without a codec shows what a value is sealed by, in place of the value.
docs/protocol.md has the form, which any client may read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, cast

import msgspec
from msgspec import Raw, Struct

from evsched.errors import CannotOpen

MARK: Final = "evsched.sealed"
"""The only field of an object that stands for a sealed value."""

_MARK: Final = MARK.encode()

_DEPTH: Final = 2
"""Lists and objects around a sealed value, at most: a graph passes on a list of results, and a hook an object with one.
A value that lies deeper is not evsched's."""


class Sealed(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A sealed value, as Redis has it."""

    data: bytes = b""
    """As base64: encrypted, the nonce of 12 bytes, the ciphertext and the tag of 16 bytes."""
    key: str = ""
    """The id of the key by which it is encrypted; "" = it is not."""
    zip: Literal["", "zlib"] = ""
    """How it was compressed before that."""
    of: str = ""
    """The id of the job that it belongs to; "" = to no job alone."""
    ref: str = ""
    """Where `data` is in the store of the app; "" = here."""

    @property
    def is_plain(self) -> bool:
        """Whether it is neither encrypted, nor compressed, nor in a store."""
        return not (self.key or self.zip or self.ref)

    def __str__(self) -> str:
        """Return the text that readers get in place of the value."""
        if self.key:
            return f"[encrypted with key {self.key}]"
        return "[in the store of the app]" if self.ref else "[compressed]"


class About(Struct, frozen=True):
    """The identity of a value, to which a ciphertext is bound: no other value of the key can take its place."""

    what: Literal["arguments", "result", "step", "signal"]
    name: str = ""
    """The task of arguments; the name of a step or a signal."""
    of: str = ""
    """The id of the job; "" = it is not known yet, or the value is for several jobs."""


class PayloadCodec(Protocol):
    """Seals values, and opens them."""

    waits: bool
    """Whether `put` and `get` may wait: there is a store for large values."""

    def seal(self, about: About, text: bytes, *, fixed: bool = False) -> Sealed:
        """Seal a text of JSON. `fixed`: so that the same text and key give the same value."""
        ...

    def open(self, about: About, sealed: Sealed) -> bytes:
        """Open a sealed value, whose data is there. `about.of` is that of the value.

        Raises:
            CannotOpen: its key is missing, or it was changed, or it belongs elsewhere.
        """
        ...

    async def put(self, sealed: Sealed) -> Sealed:
        """Put the data of a value into the store if it is large; return the value as Redis keeps it."""
        ...

    async def get(self, sealed: Sealed) -> Sealed:
        """Return a value with its data, from the store if it is there.

        Raises:
            CannotOpen: the store does not have it, or fails.
        """
        ...

    def accepts_plain(self, task: str) -> bool:
        """Return whether a job of a task may run whose arguments are not encrypted."""
        ...

    def digest(self, text: bytes) -> bytes:
        """Return a digest of at least 16 bytes, for the id of a unique job."""
        ...


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder[Any]().decode
_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_Some = list[Raw] | dict[str, Raw]
_some: Final = msgspec.json.Decoder[_Some](_Some).decode
_call: Final = msgspec.json.Decoder(tuple[_Some, _Some]).decode


def sealed_in(value: Any) -> Sealed | None:
    """Return the sealed value that a value of JSON stands for; None if it is an ordinary value."""
    if not isinstance(value, dict) or MARK not in value or len(cast("dict[str, Any]", value)) != 1:
        return None
    try:
        return msgspec.convert(value[MARK], Sealed)
    except msgspec.ValidationError:
        return None


def seal_value(codec: PayloadCodec, about: About, text: bytes) -> bytes:
    """Return a value of JSON sealed, and null as it is: it says nothing."""
    return text if text == b"null" else _written(text, codec.seal(about, text))


async def put_value(codec: PayloadCodec, about: About, text: bytes) -> bytes:
    """Return a value sealed as `seal_value`, and in the store if it is large."""
    return text if text == b"null" else _written(text, await codec.put(codec.seal(about, text)))


def _written(text: bytes, sealed: Sealed) -> bytes:
    """Return a value as Redis has it. One with the mark in it is sealed in any case: readers would open it."""
    return text if sealed.is_plain and _MARK not in text else _encode({MARK: sealed})


def open_now(codec: PayloadCodec, about: About, sealed: Sealed) -> bytes:
    """Return the text of a sealed value whose data is there. `about.of`: the job that has it.

    Raises:
        CannotOpen
    """
    if about.of and sealed.of and sealed.of != about.of:
        raise CannotOpen(f"it was sealed for job {sealed.of}, and somebody has put it into job {about.of}")
    return codec.open(About(about.what, about.name, sealed.of), sealed)


def open_text(codec: PayloadCodec, about: About, text: bytes) -> bytes:
    """Return a value of JSON opened, if it is sealed. Raises as `open_now`."""
    found = sealed_in(_decode(text)) if _MARK in text else None
    return text if found is None else open_now(codec, about, found)


def open_steps(codec: PayloadCodec, of: str, field: bytes) -> bytes:
    """Return the field `steps` of a record with its values opened (`jobs/kept.py`). Raises as `open_now`."""
    if _MARK not in field:
        return field
    lines = list[bytes]()
    for line in field.split(b"\n"):
        name, _, rest = line.partition(b"\t")
        at, _, value = rest.partition(b"\t")
        if _MARK in value:
            value = open_text(codec, About("step", name.decode(errors="replace"), of), value)
        lines.append(b"\t".join((name, at, value)) if rest else line)
    return b"\n".join(lines)


async def open_value(codec: PayloadCodec, about: About, sealed: Sealed) -> bytes:
    """Return the text of a sealed value, wherever its data is. Raises as `open_now`."""
    return open_now(codec, about, await codec.get(sealed) if sealed.ref else sealed)


def seal_call(codec: PayloadCodec, payload: bytes, of: str, *, fixed: bool = False) -> tuple[dict[str, Raw], Sealed]:
    """Return the fields of a payload but its arguments, and its arguments sealed. `of`: the job; "" = any."""
    fields = _fields(payload)
    args, kwargs = (bytes(fields.pop(name, empty)) for name, empty in (("args", Raw(b"[]")), ("kwargs", Raw(b"{}"))))
    about = About("arguments", _decode(fields["task"]), of)
    return fields, codec.seal(about, b"[%b,%b]" % (args, kwargs), fixed=fixed)


def with_seal(fields: Mapping[str, Raw], sealed: Sealed) -> bytes:
    """Return a payload of these fields, and sealed arguments."""
    return _encode({**fields, "sealed": sealed})


async def seal_payload(codec: PayloadCodec, payload: bytes, of: str = "") -> bytes:
    """Return a payload with its arguments sealed, for the job `of`; one that is sealed as it is."""
    if b'"sealed":' in payload and "sealed" in _fields(payload):
        return payload
    fields, sealed = seal_call(codec, payload, of)
    sealed = await codec.put(sealed)
    return payload if sealed.is_plain else with_seal(fields, sealed)


def seal_fixed(codec: PayloadCodec, payload: bytes) -> bytes:
    """Return a payload for several jobs, sealed so that every process makes the same of it."""
    if "sealed" in _fields(payload):
        return payload
    fields, sealed = seal_call(codec, payload, "", fixed=True)
    return payload if sealed.is_plain else with_seal(fields, sealed)


def beside_seal(payload: bytes) -> bytes:
    """Return a payload without its sealed arguments, for a worker that opens these itself."""
    return _encode({name: value for name, value in _fields(payload).items() if name != "sealed"})


async def open_payload(codec: PayloadCodec, payload: bytes, of: str) -> bytes:
    """Return a payload as if its arguments had never been sealed. `of`: the job that has it.

    Beside arguments that are sealed for no job it may have others, which come after them: results that a graph passes
    on. `[a, {"n": b}]` sealed, and `"args":[c]` beside it, are `"args":[a,c],"kwargs":{"n":b}`.

    Raises:
        CannotOpen
        msgspec.MsgspecError, RecursionError, UnicodeDecodeError: it is not a payload.
    """
    fields = _fields(payload)
    sealed = _taken(fields)
    if sealed is None and _MARK not in payload:
        return payload
    args, kwargs = _more(fields)
    args = [await _with_opened(codec, value) for value in args]
    kwargs = {name: await _with_opened(codec, value) for name, value in kwargs.items()}
    if sealed is not None:
        about = About("arguments", _decode(fields.get("task", b'""')), of)
        first, named = _as_call(*_call(await open_value(codec, about, sealed)))
        # Only results are added, and not to the arguments of one job: those are sealed as a whole.
        added = ["by position"] * bool(args and sealed.of) + sorted(kwargs if sealed.of else named.keys() & kwargs)
        if added:
            raise CannotOpen(
                f"somebody has put others beside them ({', '.join(added)}): find out who can write to Redis"
            )
        args, kwargs = [*first, *args], named | kwargs
    return _encode({**fields, "args": args, "kwargs": kwargs})


def _taken(fields: dict[str, Raw]) -> Sealed | None:
    """Take the sealed arguments out of the fields of a payload; None if it has none."""
    return msgspec.json.decode(fields.pop("sealed", b"null"), type=Sealed | None)


def _more(fields: dict[str, Raw]) -> tuple[list[Raw], dict[str, Raw]]:
    """Take the arguments out of the fields of a payload. An empty one may be of the other kind (PHP, Lua)."""
    return _as_call(_some(fields.pop("args", b"[]")), _some(fields.pop("kwargs", b"{}")))


def _as_call(args: _Some, kwargs: _Some) -> tuple[list[Raw], dict[str, Raw]]:
    return args if isinstance(args, list) else [], kwargs if isinstance(kwargs, dict) else {}


async def _with_opened(codec: PayloadCodec, value: Raw) -> Raw:
    """Return an argument with the sealed results opened that are in it."""
    if _MARK not in bytes(value):
        return value
    found = _decode(value)
    opened = {one: _decode(await open_value(codec, About("result"), one)) for one in seals_in(found)}
    return Raw(_encode(replaced(found, opened.__getitem__)))


def covers_all(payload: bytes) -> bool:
    """Return whether all arguments of a payload are encrypted, also the results that are passed on to it."""
    fields = _fields(payload)
    sealed, (args, kwargs) = _taken(fields), _more(fields)
    return (
        sealed is not None
        and bool(sealed.key)
        and all(_is_covered(_decode(value)) for value in (*args, *kwargs.values()))
    )


def _is_covered(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_covered, cast("list[Any]", value)))
    found = sealed_in(value)
    return value is None or (found is not None and bool(found.key))


def seals_in(value: Any, depth: int = _DEPTH) -> list[Sealed]:
    """Return the sealed values in a value of JSON."""
    if (found := sealed_in(value)) is not None:
        return [found]
    if not depth or not isinstance(value, dict | list):
        return []
    parts = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
    return [one for part in parts for one in seals_in(part, depth - 1)]


def replaced(value: Any, instead: Callable[[Sealed], Any], depth: int = _DEPTH) -> Any:
    """Return a value of JSON with something else in place of each sealed value."""
    if (found := sealed_in(value)) is not None:
        return instead(found)
    if not depth:
        return value
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: replaced(part, instead, depth - 1) for name, part in items}
    if isinstance(value, list):
        return [replaced(part, instead, depth - 1) for part in cast("list[Any]", value)]
    return value


def has_seals(value: Any) -> bool:
    """Return whether there are sealed values in a payload, or another value, of JSON."""
    return is_sealed_payload(value) or bool(seals_in(value, _DEPTH + 2))


def is_sealed_payload(value: Any) -> bool:
    return isinstance(value, dict) and "task" in value and "sealed" in value


def masked(value: Any) -> Any:
    """Return a payload, or another value, of JSON as readers without the key get it: without ciphertexts."""
    found = replaced(value, str, _DEPTH + 2)
    if not is_sealed_payload(found):
        return found
    try:
        text = str(msgspec.convert(found["sealed"], Sealed))
    except msgspec.ValidationError:
        text = "[sealed]"
    return found | {"sealed": text}
