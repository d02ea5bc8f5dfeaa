"""The commands for upkeep, but for the doctor and the lease: a new key, the texts for other programs, their tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from evsched.cli import output
from evsched.cli.command_client import client, note_unknown
from evsched.cli.commands import UsageError, build
from evsched.cli.ledger_commands import needs_psycopg
from evsched.cli.options import Json, Queues, Url, check_queues, settings
from evsched.client.queue_names import find_queues
from evsched.client.wire_schema import Written, wire_schema
from evsched.errors import EvschedError
from evsched.store.client_calls import signal_script

Shell = Literal["bash", "zsh", "fish"]


def rekey(*, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """Seal with the newest key of a codec the values that other keys have sealed, while all runs.

    EVSCHED_CODEC names the app with the codec. First give the new key to all programs. If this is interrupted, the same
    command does the rest. With EVSCHED_LEDGER_URL, the rows of the ledger are sealed again too.

    Exit code 1: a value cannot be opened, because its key is missing or does not fit; or it was changed all the time;
    or a queue that you name is not in use.

    Example: EVSCHED_CODEC=shop:app evsched rekey
    """
    from evsched.codec.codec import Codec
    from evsched.codec.rekey import Rekey, rekey_rows

    check_queues(queue)
    found = settings(url)
    with client(url) as redis:
        codec = redis.client.codec
        if not isinstance(codec, Codec):
            raise UsageError(
                "rekey: set EVSCHED_CODEC to MODULE:APP, an app with an evsched.codec.Codec; in a Django site, set "
                'OPTIONS["codec"]'
            )
        if queue is not None and (unknown := note_unknown(redis, queue)):
            return unknown
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


def conformance(
    *names: Annotated[str, Parameter(help="Scenes to run. Default: all.")],
    command: Annotated[str | None, Parameter(help="Starts the worker under test, such as 'node worker.mjs'.")] = None,
    sealed: Annotated[
        bool, Parameter(negative="", help="The scenes for workers that open encrypted jobs. Needs evsched[encryption].")
    ] = False,
    producer: Annotated[
        str | None, Parameter(help="Starts a program that enqueues; it is tested, not a worker.")
    ] = None,
    list_: Annotated[bool, Parameter(name="--list", negative="", help="Print the scenes, and run none.")] = False,
    lease: Annotated[float, Parameter(help="Seconds after which a worker without heartbeats counts as dead.")] = 4.0,
) -> int:
    """Test a worker or a producer in any language: run scenes against it, with a Redis of its own; print what fails.

    docs/conformance.md says what the program must do. The exit code is 1 if a scene fails, or none passes.

    Example: evsched conformance --command 'node worker.mjs'
    """
    from evsched.conformance.kit import conform
    from evsched.conformance.producer_scenes import PRODUCER_SCENES, ProducerStage
    from evsched.conformance.sealed_scenes import SEALED_SCENES, SealedStage
    from evsched.conformance.stage import Stage
    from evsched.conformance.worker_scenes import WORKER_SCENES

    if list_:
        for options, scenes in (
            ("--command", WORKER_SCENES), ("--command --sealed", SEALED_SCENES), ("--producer", PRODUCER_SCENES)
        ):  # fmt: skip
            print(f"{options}:")
            for one in scenes:
                print(f"  {one.name:20} {one.expected}")
        return 0
    if producer is not None:
        if command is not None or sealed:
            raise UsageError("--producer tests a program that enqueues: leave --command and --sealed out")
        return conform(ProducerStage(producer, lease), PRODUCER_SCENES, names)
    if command is None:
        raise UsageError("give the command that starts the worker, --command 'node worker.mjs', or the --producer")
    if sealed:
        return conform(SealedStage(command, lease), SEALED_SCENES, names)
    return conform(Stage(command, lease), WORKER_SCENES, names)


def schema(
    of: Annotated[
        Written | None, Parameter(help="What it is for. Default: one document with the definitions of all.")
    ] = None,
    /,
) -> None:
    """Print the JSON Schema of the records that clients write to Redis: payloads, inline jobs, recurrences.

    The dialect is 2020-12. docs/protocol.md says where each is written.

    Example: evsched schema payload > payload.schema.json
    """
    output.as_json(wire_schema(of))


def script(
    name: Annotated[Literal["signal"], Parameter(help="The verb.")],
    /,
) -> None:
    """Print the Lua script with which other Redis clients send signals to jobs.

    docs/protocol.md has its arguments and replies.

    Example: evsched script signal | redis-cli -x SCRIPT LOAD
    """
    assert name == "signal"
    print(signal_script())


def completion(shell: Annotated[Shell, Parameter(help="The shell.")], /) -> None:
    """Print a script for tab completion of commands, flags and their choices.

    `evsched --install-completion` saves it where your shell looks for it.

    Example: evsched completion bash > /usr/share/bash-completion/completions/evsched
    """
    print(build().generate_completion(shell=shell))


def install_completion(
    *,
    shell: Annotated[Shell | None, Parameter(help="Your shell. Default: the one that runs this command.")] = None,
) -> None:
    """Save the script for tab completion where your shell looks for it.

    For bash and zsh it also adds a line to ~/.bashrc or ~/.zshrc which loads the script. In ~/.zshrc, `compinit` must
    follow that line.

    Example: evsched --install-completion --shell zsh
    """
    from cyclopts.completion import ShellDetectionError

    try:
        saved = build().install_completion(shell=shell)
    except ShellDetectionError:
        raise UsageError("--install-completion: your shell was not recognised: add --shell bash, zsh or fish") from None
    except OSError as error:
        raise EvschedError(f"the script cannot be saved: {error.strerror}: {error.filename}") from None
    rc = [Path.home() / name for name in (".bashrc", ".zshrc")]
    changed = [str(file) for file in rc if file.is_file() and str(saved.parent) in file.read_text(errors="replace")]
    lines = "".join(f", and a line in {file} that loads it" for file in changed)
    print(f"saved {saved}{lines}; start a new shell to use it")
