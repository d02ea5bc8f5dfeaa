"""The commands that run: dispatcher, worker, api, dev, demo, conformance; and others that print text for programs.

`schema` prints the JSON Schema of the records that clients write to Redis, `completion` a script for tab completion,
which `--install-completion` saves.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter
from msgspec.structs import replace

from evsched.cli import output
from evsched.cli.commands import UsageError, build
from evsched.cli.options import (
    Queues,
    Url,
    UrlOrPrivate,
    acting,
    check_queues,
    settings,
    takes_settings,
    who_acts,
    whole,
)
from evsched.client.wire_schema import Written, wire_schema
from evsched.config import Config, variable
from evsched.environment import as_environment
from evsched.errors import EvschedError
from evsched.store.client_calls import signal_script
from evsched.transport import address

Module = Annotated[str, Parameter(name="MODULE:APP", help="Where the app is: tasks:app is `app` in tasks.py.")]
Shell = Literal["bash", "zsh", "fish"]
_DEFAULT = Config().url


@takes_settings
def dispatcher(*, config: Config) -> None:
    """Run a dispatcher: it moves due jobs to the workers, and recovers the jobs of workers that died.

    At least one dispatcher must run. Start a second on another machine, in case the first fails: both do the same work.

    Example: evsched dispatcher --url redis://localhost:6379/0
    """
    from evsched.services.service import run_dispatcher

    run_dispatcher(config)


@takes_settings
def worker(
    module: Module,
    /,
    *,
    burst: Annotated[
        bool, Parameter(negative="", help="Run all jobs that are due, without a dispatcher, and exit.")
    ] = False,
    processes: Annotated[
        str | None,
        Parameter(
            help="Start this many worker processes: 4; or 2:8, which is 2, and up to 8 when jobs wait. With 0:8 none "
            "runs while there is nothing to do."
        ),
    ] = None,
    metrics_targets: Annotated[
        Path | None, Parameter(help="With --processes: write the ports of the processes to this file, for Prometheus.")
    ] = None,
    url: Url = None,
    config: Config,
) -> int:
    """Run a worker: it runs the jobs of your app. Start any number of workers, on any machines.

    Example: evsched worker tasks:app --processes 4
    """
    if processes is None and metrics_targets is not None:
        raise UsageError("--metrics-targets lists the ports of several processes: give --processes too")
    if metrics_targets is not None and config.metrics_port is None:
        raise UsageError("--metrics-targets lists ports: give the first one with --metrics-port")
    if processes is not None and burst:
        raise UsageError("--burst runs in one process: leave --processes out")
    of_app = url is None and "EVSCHED_URL" not in os.environ
    environment = as_environment(config)
    if of_app:
        del environment[variable("url")]
    if processes is not None:
        from evsched.services.supervisor import read_process_range, run_workers

        return run_workers(config, read_process_range(processes), ["worker", module], environment, metrics_targets)

    from evsched.app import find_app
    from evsched.services.service import run_worker
    from evsched.services.worker_process import tied_to_parent

    os.environ.update(environment)  # where the app reads its settings, also in the processes of isolated runs
    with tied_to_parent():
        app = find_app(module)
    run_worker(replace(config, url=app.url) if of_app else config, app, burst=burst)
    return 0


_PRIVATE: Final = "_EVSCHED_PRIVATE_URL"
"""The URL of the private Redis that `evsched dev --reload` has started, for the process that it starts."""


@takes_settings
def dev(
    module: Module,
    /,
    *,
    reload: Annotated[
        bool, Parameter(negative="", help="Start again when a Python file below the current folder changes.")
    ] = False,
    url: UrlOrPrivate = None,
    config: Config,
) -> int:
    """Run a dispatcher and a worker in one process, for development. It starts a private Redis if no URL is set.

    It prints a line to run in other terminals, so that your program and the `evsched` commands there use that Redis.
    When `dev` ends, the private Redis and its jobs are deleted. Its address is the same the next time.

    With --reload, jobs that run when a file changes have their shutdown grace, as at the end. If the new code does not
    import, its error is printed, and the next change is awaited.

    Example: evsched dev tasks:app --reload
    """
    from evsched.app import find_app
    from evsched.services.service import run_dev
    from evsched.services.worker_process import tied_to_parent
    from evsched.transport.embedded import is_ended

    private = os.environ.pop(_PRIVATE, None)
    if url is None and is_ended(config.url):
        # It was exported for an earlier `dev`. Remove it before the app is imported, because the app reads it too.
        del os.environ["EVSCHED_URL"]
    named = url is not None or "EVSCHED_URL" in os.environ
    if reload:
        return _dev_with_reload(module, config, named=named)
    os.environ.update({name: value for name, value in as_environment(config).items() if name != variable("url")})
    with tied_to_parent():
        app = find_app(module)
    if named:
        run_dev(config, app)
    elif app.url != _DEFAULT:
        run_dev(replace(config, url=app.url), app)
    else:
        with _private_redis(module) if private is None else nullcontext(private) as own:
            print("A private Redis runs as long as this process. In other terminals, run this line first:")
            print(f"export EVSCHED_URL={shlex.quote(own)}", flush=True)
            run_dev(replace(config, url=own), app)
    return 0


def _dev_with_reload(module: str, config: Config, *, named: bool) -> int:
    """Run `evsched dev` in a process that is started again at each change. The private Redis outlives it."""
    from evsched.services.dev_reload import check_installed, run_reloading

    check_installed()
    environment = as_environment(config)
    if named:
        return run_reloading(config, ["dev", module], environment)
    del environment[variable("url")]
    with _private_redis(module) as own:
        return run_reloading(config, ["dev", module], {**environment, _PRIVATE: own})


@contextmanager
def _private_redis(module: str) -> Generator[str]:
    from evsched.transport.embedded import EmbeddedRedis, project_folder

    with project_folder(module) as project, EmbeddedRedis(None, project) as server:
        yield server.url


def demo(
    *,
    jobs: Annotated[int, Parameter(converter=whole, help="How many jobs to schedule.")] = 200,
    seconds: Annotated[float, Parameter(help="How many seconds to spread their due times over.")] = 4.0,
    idle: Annotated[float, Parameter(help="How many seconds to count commands while nothing is due.")] = 15.0,
    url: UrlOrPrivate = None,
) -> int:
    """Schedule jobs in three ways, run them with a dispatcher and a worker, and print how late they started.

    It starts a private Redis if no URL is set.

    Example: evsched demo --jobs 1000
    """
    from evsched.demo import run_demo
    from evsched.transport.embedded import EmbeddedRedis

    if url is not None or "EVSCHED_URL" in os.environ:
        used = settings(url).url
        print(f"the demo uses {address.hide_password(used)}", flush=True)
        return run_demo(used, jobs, seconds, idle)
    with EmbeddedRedis() as server:
        return run_demo(server.url, jobs, seconds, idle)


@takes_settings
def api(*, config: Config) -> None:
    """Serve the HTTP interface: schedule, look up and change jobs and recurrences with JSON. It needs tokens.

    Callers send a token, which is in EVSCHED_API_WRITE_TOKENS, EVSCHED_API_READ_TOKENS, or a file. With --queue,
    they can reach those queues only. TLS and limits of connections are the business of the proxy in front of it.

    Example: EVSCHED_API_WRITE_TOKENS=file:/run/secrets/evsched evsched api --port 8420
    """
    from evsched.services.service import run_api

    run_api(config)


@acting
def mcp(
    *,
    write: Annotated[
        bool, Parameter(negative="", help="Also the tools that run, cancel, revive, pause and resume.")
    ] = False,
    queue: Queues = None,
    url: Url = None,
) -> None:
    """Serve tools to a language model over stdin and stdout, by the Model Context Protocol: explain, doctor, history.

    The program that has the model starts this command. Without --write, nothing can be changed. With --queue, the
    model can reach those queues only. It reads the payloads of jobs, but no redacted values.

    Example: evsched mcp --queue mail
    """
    from evsched.mcp import missing

    check_queues(queue)
    config = replace(settings(url), queues=tuple(queue or ()))
    try:
        from evsched.mcp.mcp_server import run_mcp
    except ImportError:
        raise missing() from None
    run_mcp(config, who_acts(config.url), write=write)


def conformance(
    *names: Annotated[str, Parameter(help="Scenes to run. Default: all.")],
    command: Annotated[str | None, Parameter(help="Starts the worker under test, such as 'node worker.mjs'.")] = None,
    list_: Annotated[bool, Parameter(name="--list", negative="", help="Print the scenes, and run none.")] = False,
    lease: Annotated[float, Parameter(help="Seconds after which a worker without heartbeats counts as dead.")] = 4.0,
) -> int:
    """Test a worker in any language: run scenes against it, with a Redis and an API of its own, and print what fails.

    docs/conformance.md defines the tasks that the worker must have. The exit code is 1 if a scene fails.

    Example: evsched conformance --command 'node worker.mjs'
    """
    from evsched.conformance.kit import chosen, run_scenes

    scenes = chosen(names)
    if list_:
        for one in scenes:
            print(f"{one.name:22} {one.expected}")
        return 0
    if command is None:
        raise UsageError("give the command that starts the worker: --command 'node worker.mjs'")
    return run_scenes(command, scenes, lease)


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
