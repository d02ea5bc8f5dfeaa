"""How a sender reads the reply to a call."""

from __future__ import annotations

from typing import Any

from evsched.errors import EvschedError, StoreRefused
from evsched.transport.call import Call, T
from evsched.transport.redis_errors import translate


def read_reply(call: Call[T], reply: Any) -> T:
    """Return the value of a reply.

    Raises:
        EvschedError: the reply is an error, or cannot be read; other calls of the same batch are not affected.
    """
    if isinstance(reply, Exception):
        raise translate(reply, call)
    try:
        return call.read(reply)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise StoreRefused(
            f"{call.name}: its reply cannot be read ({type(error).__name__}: {error})", kind="reply"
        ) from error


def value_or_error(call: Call[Any], reply: Any) -> Any:
    """Return the value of a reply, or the error that reading it raised."""
    try:
        return read_reply(call, reply)
    except EvschedError as error:
        return error
