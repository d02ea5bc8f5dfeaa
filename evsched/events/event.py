"""The base class of all events, and the object that passes them to their subscribers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True):
    """A fact that has just become true."""


Subscriber = Callable[[Event], None]
Emit = Callable[[Event], None]


class Events:
    """Passes each event to all subscribers, at once and in order. A subscriber must be quick and must not raise."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Pass events to `subscriber` too, from now on."""
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Pass an event to all subscribers."""
        for subscriber in self._subscribers:
            subscriber(event)
