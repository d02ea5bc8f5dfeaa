"""The command that changes the key of sealed values."""

from __future__ import annotations

import asyncio

from evsched.cli import output
from evsched.cli.command_client import client
from evsched.cli.commands import UsageError
from evsched.cli.ledger_commands import needs_psycopg
from evsched.cli.options import Json, Queues, Url, check_queues, settings
from evsched.client.queue_names import find_queues


def rekey(*, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """Seal with the newest key of a codec the values that other keys have sealed, while all runs.

    EVSCHED_CODEC names the app with the codec. First give the new key to all programs. If this is interrupted, the same
    command does the rest. With EVSCHED_LEDGER_URL, the rows of the ledger are sealed again too.

    Exit code 1: a value cannot be opened, because its key is missing or does not fit; or it was changed all the time.

    Example: EVSCHED_CODEC=shop:app evsched rekey
    """
    from evsched.codec.codec import Codec
    from evsched.codec.rekey import Rekey, rekey_rows

    check_queues(queue)
    found = settings(url)
    with client(url) as redis:
        codec = redis.client.codec
        if not isinstance(codec, Codec):
            raise UsageError("rekey: set EVSCHED_CODEC to MODULE:APP, an app with an evsched.codec.Codec")
        names = redis.run(find_queues()) if queue is None else queue
        work = Rekey([store for name in names for store in redis.stores(name)], codec)
        stopped_by = redis.work_off(work, "keys examined", lambda: f"{work.result.done} values sealed again")
        result = work.result
        if found.ledger_url is not None and not stopped_by:
            with needs_psycopg():
                rows = asyncio.run(rekey_rows(found.ledger_url, codec))
            result.done, result.changed = result.done + rows.done, result.changed + rows.changed
            result.missing.update(rows.missing)
            result.why |= rows.why
    if json:
        output.as_json({"key": codec.write, "done": result.done, "changed": result.changed, "missing": result.missing})
    else:
        more = ", then stopped: the same command does the rest" if stopped_by else ""
        print(f"{result.done} values were sealed again, with key {codec.write}{more}")
    if result.changed:
        output.note(f"{result.changed} values were changed meanwhile, and may need another key: repeat the command")
    for key, count in sorted(result.missing.items()):
        output.note(f"{count} values of key {key} cannot be opened; the reason of one: {result.why[key]}")
    if stopped_by:
        return 128 + stopped_by
    return 1 if result.changed or result.missing else 0
