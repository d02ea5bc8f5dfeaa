"""Why a message did not reach an AMQP broker, in a sentence for the reason of its job.

The sentences are made of what is known here: the names in the payload, and the kind of the error. The texts of the
library and of the server are not repeated: they may have a password, or say what helps nobody.
"""

from __future__ import annotations

import os
from typing import Final

from aiormq import exceptions
from pamqp.exceptions import PAMQPException

from evsched.targets.broker_transport import NoBroker

NOT_CONFIRMED: Final = "lost the connection before it confirmed the message"

ERRORS: Final = (
    exceptions.AMQPError,
    PAMQPException,
    NoBroker,
    OSError,
    EOFError,
    RuntimeError,
    StopAsyncIteration,
    ValueError,
)
"""What aiormq and the network raise."""


def of_connecting(error: BaseException) -> str:
    """Say why there is no connection."""
    match error:
        case TimeoutError():
            return "did not answer: is it up, and is it an AMQP broker?"
        case NoBroker():
            return f"cannot be understood: {error}"
        case exceptions.AuthenticationError() | exceptions.ProbableAuthenticationError():
            return "refused the user or the password in its URL"
        case exceptions.InvalidFrameError() if "Connection.OpenOk" in str(error):
            return "has no virtual host of the name in its URL, or the user has no right to it"
        case exceptions.ConnectionClosed():
            return "closed the connection: its log says why"
        case exceptions.AMQPError() | PAMQPException() | StopAsyncIteration() | EOFError():
            return "ended the connection, or does not speak AMQP 0-9-1: is it an AMQP broker?"
        case OSError():
            # A negative number is that of a name that was not found. Without one, several addresses were tried.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            return f"cannot be reached: {why or 'no address of it answers'}"
        case _:
            return "cannot be used: an AMQP broker with publisher confirms is needed"


def of_publishing(error: BaseException, exchange: str, routing_key: str, size: int) -> str:
    """Say why a message was not taken. `size`: bytes of its body."""
    to = f"exchange {exchange!r:.200}" if exchange else f"queue {routing_key!r:.200}"
    match error:
        case exceptions.PublishError() if exchange:
            bound = f"no queue is bound to {to} for the routing key {routing_key!r:.200}"
            return f"could not route the message: {bound}"
        case exceptions.PublishError():
            return f"could not route the message: there is no {to}"
        case exceptions.DeliveryError():
            return f"refused the message to {to}: a queue may be full"
        case exceptions.ChannelNotFoundEntity():
            return f"could not route the message: there is no {to}"
        case exceptions.ChannelAccessRefused():
            rights = "the user in its URL may not write there, or messages from outside may not go there"
            return f"refused the message to {to}: {rights}"
        case exceptions.ChannelPreconditionFailed():
            return f"refused the message to {to}: it has {size} bytes, which may be more than the broker allows"
        case exceptions.ChannelClosed():
            return f"refused the message to {to}: its log says why"
        case _:
            return NOT_CONFIRMED
