"""The question who sends a request for the console: site_console.py asks it, and the page of admin.py answers.

It stands in the scope of an ASGI request, where no request from outside can put anything.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

PAGE: Final = "admin:evsched_adminconsole_changelist"
"""The page that answers, for `reverse`."""

ASK: Final = "evsched.ask"
"""The key of the question in the scope."""

ConsoleRole = Literal["viewer", "operator"]


class Ask(Struct):
    """The question, and its answer. Nobody has answered as long as there is no user's name."""

    user: str = ""
    role: ConsoleRole | None = None
    """None: the user may not even see the console."""


def role_of(user: Any) -> ConsoleRole | None:
    """Return the role that a user's permissions give. Who may act may also look."""
    if user.has_perm("evsched.operate_console"):
        return "operator"
    return "viewer" if user.has_perm("evsched.view_console") else None
