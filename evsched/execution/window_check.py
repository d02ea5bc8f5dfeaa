"""Whether a job may run now, by its window."""

from __future__ import annotations

from msgspec.structs import replace

from evsched.errors import ConfigError, StoreError
from evsched.execution.run import Run
from evsched.execution.run_store import RunStore
from evsched.execution.verdict import not_now
from evsched.jobs.job import Buried, Deferred, shorten
from evsched.recurrence.windows import WINDOW_NAME, read_window


async def check_window(store: RunStore, run: Run, window: str, reply: bool) -> Deferred | Buried | None:
    """Return the outcome of a job whose window is closed now; None = it is open.

    `window` is what its payload says: a window, or the name of one that is kept in Redis. `reply`: it asks for one.
    """
    if not WINDOW_NAME.fullmatch(window):
        return judge_window(window, "", run.delivery.redis_now(), reply)
    try:
        text = await store.read_window(run.delivery.whole_queue, window)
    except StoreError as error:  # deferred without the window's name, since `defer` could not compare the text
        return not_now(run.delivery.redis_now(), f"its window {window!r} cannot be read: {error}")
    if text is None:
        return Buried(f"there is no window {window!r}: `evsched windows set {window} ...`, then revive it", reply)
    judged = judge_window(text, window, run.delivery.redis_now(), reply)
    if isinstance(judged, Deferred) and run.delivery.whole_queue != run.delivery.queue:
        return replace(judged, elsewhere=True)
    return judged


def judge_window(text: str, name: str, now: float, reply: bool) -> Deferred | Buried | None:
    """Return the outcome of a job by the text of its window. `name`, if it has one, is kept with a deferred job."""
    try:
        opens = read_window(text).next_open(now)
    except ConfigError as error:
        return Buried(shorten(str(error)), reply)
    if opens is None:
        return Buried(shorten(f"window {text!r} does not open again within two years"), reply)
    if opens <= now:
        return None
    return Deferred(opens, shorten(f"outside its window {text}"), name, text if name else "")
