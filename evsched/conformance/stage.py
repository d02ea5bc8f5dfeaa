"""The stage of the scenes: a Redis, a dispatcher and an API of its own, and workers.

A worker learns from its environment where these are. Its handlers append lines to a file, so a scene sees every run,
also of a worker that was killed.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from evsched import keys
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.demo import service
from evsched.errors import CannotStart, ConfigError
from evsched.jobs.job import encode
from evsched.jobs.record import JobStatus
from evsched.store import server as server_calls
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis

QUEUE: Final = "conformance"

SLOTS: Final = 4
"""How many jobs a worker may run at the same time."""

GRACE: Final = 2.0
"""Seconds that a worker leaves to its runs when it is asked to end."""

PATIENCE: Final = 30.0
"""Seconds for an event that should come at once: a busy machine takes some of them to start a program."""

_LOOK: Final = 0.05
"""Seconds between two looks."""

_OUTPUT: Final = 1500
"""Characters of a program's output that are shown."""

_QUIET: Final = {"EVSCHED_LOG_LEVEL": "CRITICAL"}
"""For the services: the failures that they would log are those of the scenes."""

T = TypeVar("T")


class Unexpected(Exception):
    """A scene has seen something else than it expects."""


def words_of(command: str) -> list[str]:
    """Return the words of a command.

    Raises:
        ConfigError: its quotes are not balanced, or there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the command {command!r} cannot be read: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"there is no program {words[0] if words else ''!r}: correct the command {command!r}")
    return words


class ProgramUnderTest:
    """A worker's process, with all that it starts.

    It is waited for only after it was killed, so that no other process gets its number before.
    """

    def __init__(self, command: str, environment: Mapping[str, str], output: Path) -> None:
        with output.open("ab") as log:
            self._child = subprocess.Popen(
                words_of(command), env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def runs(self) -> bool:
        if self._child.returncode is not None:
            return False
        return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and all that it has started."""
        if self._child.returncode is None:
            os.killpg(self._child.pid, number)
        if number == signal.SIGKILL:
            self._child.wait()

    def ask_to_end(self) -> None:
        """Send SIGTERM, as an operator or Kubernetes does."""
        os.kill(self._child.pid, signal.SIGTERM)


class Stage:
    """All that a scene may use. The worker is started before each scene, if it does not run.

    `command` starts it. `environment`: more variables for it.

    Raises:
        ConfigError: the command or the lease is not valid.
    """

    def __init__(self, command: str, lease: float, **environment: str) -> None:
        words_of(command)
        if not 0.5 <= lease <= 3600:
            raise ConfigError(f"--lease is {lease:g}: give 0.5 to 3600 s")
        self.lease = lease
        self._command = command
        self._environment = environment
        self._stack = ExitStack()
        self._api = ExitStack()
        self._token = secrets.token_urlsafe(32)
        self._number = 0
        self.programs = list[ProgramUnderTest]()

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        self.folder = Path(enter(tempfile.TemporaryDirectory(prefix="evsched-conformance-")))
        self.log, self.output = self.folder / "log", self.folder / "output"
        try:
            self.redis = enter(EmbeddedRedis())
            self.client = SyncClient(self.redis.url)
            self._stack.callback(self.client.close)
            enter(service(self.redis.url, "dispatcher", EVSCHED_LEASE=str(self.lease), **_QUIET))
            self._stack.callback(self._api.close)
            self._stack.callback(self.kill)
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self._port = probe.getsockname()[1]
            self.until(lambda: self.client.send(server_calls.lease()), "a lease in Redis")
            self.start_api()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # The processes.

    def start_api(self) -> None:
        """Start the API, at the same address each time, and wait until it listens."""
        tokens = {f"EVSCHED_API_{right}_TOKENS": self._token for right in ("WRITE", "WORK")}
        settings = {"EVSCHED_API_PORT": str(self._port), "EVSCHED_API_RATE": "100000", **tokens, **_QUIET}
        self._process = self._api.enter_context(service(self.redis.url, "api", **settings))
        self.until(self._listens, "the API listens")

    def kill_api(self) -> None:
        self._process.kill()
        self._api.close()

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise CannotStart(f"`evsched api` ended with code {self._process.returncode}: its log is above")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program: it says where all is."""
        return {
            **os.environ,
            "CONFORMANCE_API": f"http://127.0.0.1:{self._port}",
            "CONFORMANCE_TOKEN": self._token,
            "CONFORMANCE_QUEUE": QUEUE,
            "CONFORMANCE_LOG": str(self.log),
            "CONFORMANCE_SLOTS": str(SLOTS),
            "CONFORMANCE_GRACE": f"{GRACE:g}",
            # For our own worker, which does not use the API.
            "EVSCHED_URL": self.redis.url,
            "EVSCHED_CONCURRENCY": str(SLOTS),
            "EVSCHED_SHUTDOWN_GRACE": f"{GRACE:g}",
            **self._environment,
        }

    def start(self, command: str = "") -> ProgramUnderTest:
        """Start one more worker, or another command."""
        self.log.touch()
        program = ProgramUnderTest(command or self._command, self.environment, self.output)
        self.programs.append(program)
        return program

    def keep_running(self) -> None:
        """Start a worker, unless one runs."""
        for program in [one for one in self.programs if not one.runs]:
            program.signal(signal.SIGKILL)  # what it has left behind
            self.programs.remove(program)
        if not self.programs:
            self.start()

    def kill(self) -> None:
        """Kill all programs."""
        for program in self.programs:
            program.signal(signal.SIGKILL)
        self.programs.clear()

    def check_after(self) -> None:
        """Check what must hold after each scene. Here, nothing."""

    def start_over(self) -> None:
        """Kill the programs and delete all jobs and lines, after a scene that failed."""
        self.kill()
        self.output.unlink(missing_ok=True)
        self.log.write_text("")
        self.client.send(Call(("FLUSHALL",), bool))
        self.client.send(server_calls.set_lease(self.lease))

    def last_output(self) -> str:
        """Return the end of the programs' output."""
        return self.output.read_text(errors="replace")[-_OUTPUT:].strip() if self.output.exists() else ""

    # The jobs.

    def enqueue(self, task: str, *args: Any, named: Mapping[str, Any] = {}, **options: Unpack[JobOptions]) -> str:
        """Enqueue a job, whose record is kept for the scene; return its id."""
        self._number += 1
        defaults: JobOptions = {"id": f"{task}-{self._number}", "retention": 3600}
        job = new_job(task, args, dict(named), defaults | options)
        self.client.enqueue(QUEUE, [job])
        return job.id

    def write(self, job_id: str, payload: Mapping[str, Any]) -> None:
        """Write a job to Redis as a foreign client does, whatever its payload is."""
        record = Call(("HSET", keys.job(QUEUE, job_id), "payload", encode(payload)), int, near=keys.root(QUEUE))
        self.client.send(record)
        self.schedule(job_id)

    def schedule(self, member: str) -> None:
        """Put a member on the schedule, due now: an id, or an inline job."""
        self.client.send(Call(("ZADD", keys.schedule(QUEUE), 0, member), int, near=keys.root(QUEUE)))

    def status(self, job_id: str) -> JobStatus | None:
        return self.client.status(QUEUE, job_id)

    def raw(self, job_id: str, field: str) -> bytes:
        """Return a field of a record as Redis has it."""
        call = Call(("HGET", keys.job(QUEUE, job_id), field), _text, near=keys.root(QUEUE))
        return self.client.send(call)

    def ended(self, job_id: str, within: float = PATIENCE) -> JobStatus:
        """Wait until a job has ended; return its record."""

        def look() -> JobStatus | None:
            found = self.status(job_id)
            return found if found is not None and found.outcome is not None else None

        return self.until(look, f"{job_id} ends", within, lambda: _summary(self.status(job_id)))

    def dead(self, job_id: str, *words: str, within: float = PATIENCE) -> JobStatus:
        """Wait until a job is dead; its reason must contain these words."""
        status = self.ended(job_id, within)
        expect(status.outcome, "dead", f"the outcome of {job_id}")
        for word in words:
            require(word in (status.reason or ""), f"the reason of {job_id} is {status.reason!r}, without {word!r}")
        return status

    def result(self, task: str, *args: Any, **options: Unpack[JobOptions]) -> Any:
        """Run a job, and return its result."""
        status = self.ended(self.enqueue(task, *args, **options))
        expect(status.outcome, "done", f"the outcome ({status.reason})")
        return status.result

    def scripts_run(self) -> int:
        """Return how many scripts Redis has run: each step of a worker or a service is one."""
        found = self.client.send(server_calls.info("commandstats"))
        return int(found["cmdstat_evalsha"].partition(",")[0].removeprefix("calls="))

    def cancel(self, job_id: str) -> None:
        self.client.cancel(QUEUE, job_id)

    def lines(self, job_id: str, what: str = "") -> list[tuple[str, int]]:
        """Return what the handlers of a job have written: "begin", "end" or "stop", and the attempt."""
        found = [line.split() for line in self.log.read_text().splitlines()]
        return [(verb, int(attempt)) for verb, of, attempt in found if of == job_id and what in ("", verb)]

    def begun(self, job_id: str, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until a handler has begun a job, `count` times in all, and Redis knows it.

        Until Redis knows it, a run that is cut short costs no attempt.
        """
        self.until(
            lambda: len(self.lines(job_id, "begin")) >= count, f"run {count} of {job_id} begins", within,
            lambda: f"its handlers wrote {self.lines(job_id)}; {_summary(self.status(job_id))}",
        )  # fmt: skip
        self.until(lambda: self.raw(job_id, "begun") in (b"1", b"alone"), f"{job_id} is marked as begun", within)

    def until(
        self,
        look: Callable[[], T | None],
        event: str,
        within: float = PATIENCE,
        seen: Callable[[], str] = lambda: "it did not happen",
    ) -> T:
        """Wait until `look` returns something true, and return that.

        Raises:
            Unexpected: that took too long.
        """
        end = time.monotonic() + within
        while not (found := look()):
            if time.monotonic() > end:
                ended = "" if all(one.runs for one in self.programs) else "; the program under test has ended"
                raise Unexpected(f"{seen()}{ended}; the kit waited {within:g} s for: {event}")
            time.sleep(_LOOK)
        return found


def expect(found: object, wanted: object, name: str) -> None:
    """Compare a value.

    Raises:
        Unexpected: it is another one.
    """
    if found != wanted:
        raise Unexpected(f"{name} is {_short(found)}, not {_short(wanted)}")


def require(holds: object, seen: str) -> None:
    """Raise Unexpected unless something holds."""
    if not holds:
        raise Unexpected(seen)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:150]} ... {text[-40:]} ({len(text)} characters)"


def _text(reply: Any) -> bytes:
    return reply or b""


def _summary(status: JobStatus | None) -> str:
    if status is None:
        return "there is no such job"
    facts = (f"attempt {status.attempt}", status.outcome, status.reason)
    return ", ".join([f"it is in {status.place}", *(fact for fact in facts if fact)])
