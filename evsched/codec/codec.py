"""The codec that comes with evsched: zlib, AES-256-GCM, and two functions for large values."""

from __future__ import annotations

import base64
import hmac
import os
import re
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from msgspec.structs import replace

from evsched.errors import CannotOpen, ConfigError
from evsched.jobs.sealed import About, Sealed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Put = Callable[[str, bytes], Awaitable[object]]
Get = Callable[[str], Awaitable[bytes]]

_KEY: Final = 32
"""Bytes of a key: AES-256."""

_NONCE: Final = 12
"""Bytes of a nonce, as NIST SP 800-38D recommends. A key must not encrypt more than 2^32 values with random ones."""

_KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

_OPENED_MOST: Final = 64 * 1024 * 1024
"""Bytes that a value may have once it is decompressed: a value of a few KiB could otherwise take all memory."""

_MAKE_ONE: Final = "make one with `openssl rand -base64 32`"


class Codec:
    """Compresses and encrypts arguments and results; give it to `App(codec=...)`.

    `keys`: the keys by their ids, each 32 random bytes, or their base64. All of them read, and `write` is the one that
    encrypts; with a single key it is that one. Without keys nothing is encrypted. `compress_above`: bytes from which on
    a value is compressed by zlib; None = never. `put` and `get`: async functions that store bytes under a name, and
    return them; values of more than `put_above` bytes go there. `get` raises LookupError if there is nothing of that
    name. evsched never deletes there. `id_key`: another key, by which the ids of unique jobs are made of their
    arguments: without it, a reader of an id can test guesses of them. `accept_plain`: whether workers run jobs whose
    arguments are not encrypted; or the names of the tasks of which they do, such as those of hooks.

    Raises:
        ConfigError: a key has not 32 bytes, `write` is not one of them, or an option is not valid.
    """

    def __init__(
        self,
        keys: Mapping[str, str | bytes] | None = None,
        *,
        write: str | None = None,
        compress_above: int | None = 1024,
        put: Put | None = None,
        get: Get | None = None,
        put_above: int = 65536,
        id_key: str | bytes | None = None,
        accept_plain: bool | Collection[str] = True,
    ) -> None:
        if keys is not None and not _has_keys(keys):
            raise ConfigError("Codec: keys has no key: give keys by their ids, or leave it out to compress only")
        found = {_checked_id(name): _read_key(f"key {name!r}", key) for name, key in (keys or {}).items()}
        self._ciphers = _ciphers(found) if found else {}
        self._nonce_keys = {name: hmac.digest(key, b"evsched nonce", sha256) for name, key in found.items()}
        self.write = _chosen(write, [*found])
        """The id of the key that encrypts; "" = none."""
        if (put is None) != (get is None):
            raise ConfigError("Codec: put and get belong together: give both, or neither")
        if put is not None and not (callable(put) and callable(get)):
            raise ConfigError("Codec: put or get is no function: give async functions")
        for name, size in (("compress_above", compress_above), ("put_above", put_above)):
            if size is not None and (type(size) is not int or size < 0):
                raise ConfigError(f"Codec: {name} is {size!r:.100}: give a whole number of bytes")
        self._put, self._get, self._put_above = put, get, put_above
        self.waits = put is not None
        self._compress_above = compress_above
        self._id_key = None if id_key is None else _read_key("id_key", id_key)
        if not isinstance(accept_plain, bool) and not _are_names(accept_plain):
            raise ConfigError(f"Codec: accept_plain is {accept_plain!r:.100}: give True, False or names of tasks")
        if accept_plain is not True and not found:
            raise ConfigError("Codec: accept_plain needs keys: without them no job is encrypted")
        self._accept_plain = accept_plain

    def seal(self, about: About, text: bytes, *, fixed: bool = False) -> Sealed:
        data = text
        if self._compress_above is not None and len(text) >= self._compress_above:
            data = min(text, zlib.compress(text), key=len)
        sealed = Sealed(data, zip="" if data is text else "zlib", of=about.of)
        if not self.write:
            return sealed
        sealed, bound = replace(sealed, key=self.write), _bound(about, sealed)
        if fixed:  # the same nonce never encrypts two texts: it is made of the text
            nonce = hmac.digest(self._nonce_keys[self.write], bound + b"\n" + data, sha256)[:_NONCE]
        else:
            nonce = os.urandom(_NONCE)
        return replace(sealed, data=nonce + self._ciphers[self.write].encrypt(nonce, data, bound))

    def open(self, about: About, sealed: Sealed) -> bytes:
        data = sealed.data
        if sealed.key:
            data = self._decrypt(about, sealed)
        return _decompressed(data) if sealed.zip else data

    def _decrypt(self, about: About, sealed: Sealed) -> bytes:
        cipher = self._ciphers.get(sealed.key)
        if cipher is None:
            known = ", ".join(map(repr, self._ciphers)) or "none"
            raise CannotOpen(f"key {sealed.key!r} is missing, and this codec has {known}: give it that key")
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(sealed.data[:_NONCE], sealed.data[_NONCE:], _bound(about, sealed))
        except (InvalidTag, ValueError):  # the latter: there is no whole nonce
            what = f"{about.what} of {about.name}" if about.name else about.what
            raise CannotOpen(
                f"key {sealed.key!r} does not fit: the ciphertext was changed, or is not of the {what}, or the key of "
                "that id is another one: find out who can write to Redis"
            ) from None

    async def put(self, sealed: Sealed) -> Sealed:
        if self._put is None or len(sealed.data) <= self._put_above:
            return sealed
        name = uuid4().hex
        await self._put(name, sealed.data)
        return replace(sealed, data=b"", ref=name)

    async def get(self, sealed: Sealed) -> Sealed:
        if not sealed.ref:
            return sealed
        if self._get is None:
            raise CannotOpen(f"the data is in a store, as {sealed.ref!r}, and this codec has none: give it put and get")
        try:
            data = await self._get(sealed.ref)
        except LookupError:
            raise CannotOpen(f"the store has nothing under {sealed.ref!r} any more: restore it there") from None
        # Whatever the user's function raises, such as a timeout: the job waits.
        except Exception as error:  # noqa: BLE001
            why = f"the store does not give {sealed.ref!r}: {type(error).__name__}: {error}"
            raise CannotOpen(why, later=True) from None
        if type(data) is not bytes:
            why = f"get returned {type(data).__name__} for {sealed.ref!r}: return bytes, or raise LookupError"
            raise CannotOpen(why, later=True)
        return replace(sealed, data=data, ref="")

    def accepts_plain(self, task: str) -> bool:
        return self._accept_plain if isinstance(self._accept_plain, bool) else task in self._accept_plain

    def digest(self, text: bytes) -> bytes:
        return sha256(text).digest() if self._id_key is None else hmac.digest(self._id_key, text, sha256)

    def is_current(self, sealed: Sealed) -> bool:
        """Return whether a value is sealed as this codec would seal it now: with its key to write."""
        return sealed.key == self.write


def _has_keys(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(cast("Mapping[Any, Any]", value))


def _are_names(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Collection):
        return False
    return all(isinstance(name, str) for name in cast("Collection[Any]", value))


def _bound(about: About, sealed: Sealed) -> bytes:
    """Return the additional data that a ciphertext is bound to; docs/protocol.md has its form."""
    return f"{about.what}\n{about.name}\n{about.of}\n{sealed.zip}".encode()


def _decompressed(data: bytes) -> bytes:
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data, _OPENED_MOST)
    except zlib.error as error:
        raise CannotOpen(f"it is not compressed by zlib: {error}") from None
    if not reader.eof:
        more = f"more than {_OPENED_MOST:,} bytes" if reader.unconsumed_tail else "no end"
        raise CannotOpen(f"the compressed data has {more}")
    return found


def _checked_id(name: Any) -> str:
    if not isinstance(name, str) or not _KEY_ID.fullmatch(name):
        raise ConfigError(
            f"Codec: {name!r:.100} is not an id for a key: give 1 to 64 of A-Z a-z 0-9 . _ -, such as 2026-11"
        )
    return name


def _read_key(which: str, key: Any) -> bytes:
    """Return a key, which is never part of a message."""
    if not isinstance(key, str | bytes | bytearray):
        raise ConfigError(f"Codec: {which} is of the type {type(key).__name__}: give {_KEY} bytes, or their base64")
    try:
        found = base64.b64decode(key, validate=True) if isinstance(key, str) else bytes(key)
    except ValueError:
        raise ConfigError(f"Codec: {which} is not base64: {_MAKE_ONE}") from None
    if len(found) != _KEY:
        raise ConfigError(f"Codec: {which} has {len(found)} bytes, and AES-256 needs {_KEY}: {_MAKE_ONE}")
    return found


def _chosen(write: str | None, names: list[str]) -> str:
    if write is None and len(names) > 1:
        raise ConfigError(f"Codec: no key to write: say with write= which of {', '.join(names)} encrypts")
    if write is not None and write not in names:
        raise ConfigError(f"Codec: write is {write!r:.100}, and the keys are {', '.join(names) or 'none'}")
    return write or (names[0] if names else "")


def _ciphers(keys: Mapping[str, bytes]) -> dict[str, AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise ConfigError("Codec: keys need the package cryptography: pip install 'evsched[encryption]'") from None
    return {name: AESGCM(key) for name, key in keys.items()}
