"""A siege: a real dispatcher and a real worker, whose queue a bad producer writes to as its rights allow.

Whatever it writes, harmless jobs of the same queue run, no process ends, both stay ready, and the doctor finishes.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from redis.exceptions import NoPermissionError, ResponseError

from tests.support import hostile
from tests.support.cli import Cli
from tests.support.patience import PATIENCE

TASKS: Final = """
from evsched import App

app = App()

@app.task
async def noop() -> None: ...
"""

_LIMIT: Final = PATIENCE
"""Seconds to wait for a harmless job or for an answer."""


class Service:
    """One process, its log, and whether it is ready."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self.child = cli.start(*words, "--metrics-port", "0")
        self.lines: list[str] = []
        self._address: str = ""
        self._listens = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stderr is not None
        with self.child.stderr:
            for line in self.child.stderr:
                self.lines.append(line)
                if not self._address and '"Listening"' in line:
                    self._address = str(json.loads(line)["url"]).removeprefix("http://")
                    self._listens.set()

    def ready(self) -> str | None:
        """Return None if it is ready at one of three requests, else why it is not."""
        assert self._listens.wait(_LIMIT), self.lines
        body = ""
        for _ in range(3):
            link = http.client.HTTPConnection(self._address, timeout=_LIMIT)
            try:
                link.request("GET", "/readyz")
                answer = link.getresponse()
                body = answer.read().decode()
            except ConnectionError as error:  # a service on a busy machine cuts links that waited for long
                body = str(error)
                continue
            finally:
                link.close()
            if answer.status == http.HTTPStatus.OK:
                return None
        return body

    def end(self) -> int:
        """End it with SIGTERM and return its exit code; kill it if it does not end in time."""
        self.child.terminate()
        try:
            return self.child.wait(_LIMIT)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it by force, if it has not ended."""
        self.child.kill()
        self.child.wait()
        self._reader.join()


class Attack:
    """Hostile writes, which Hypothesis shows by their number: they may have megabytes."""

    def __init__(self, commands: list[hostile.Command]) -> None:
        self.commands = commands

    def __repr__(self) -> str:
        return f"{len(self.commands)} commands"


class Siege:
    """One queue under siege. `round` is one attack and then a harmless job."""

    def __init__(self, cli: Cli, queue: str, producer: Any, services: Sequence[Service]) -> None:
        self._cli = cli
        self._queue = queue
        self._producer = producer
        self._services = services
        self._harmless = 0

    def await_ready(self) -> None:
        """Wait until both services are ready."""
        for _ in range(200):
            if not any(service.ready() for service in self._services):
                return
            self.run_harmless()
        raise AssertionError([service.ready() for service in self._services])

    def run_harmless(self) -> None:
        """Schedule a harmless job, as any client would, and wait for its end."""
        self._harmless += 1
        job = f"good-{self._harmless}"
        payload = json.dumps({"task": "noop", "id": job, "reply": True})
        self._producer.zadd(f"evsched:{{{self._queue}}}:schedule", {payload: 0})
        reply = self._producer.blpop([f"evsched:{{{self._queue}}}:reply:{job}"], _LIMIT)
        assert reply is not None, f"{job} did not run: {self.last_words()}"
        assert json.loads(reply[1])["outcome"] == "done"

    def round(self, commands: Sequence[hostile.Command]) -> None:
        """Send hostile writes; then check that a harmless job runs and that both processes are ready."""
        for command in commands:
            try:
                self._producer.execute_command(*command)
            except NoPermissionError:
                raise
            except ResponseError:
                pass  # Redis itself refuses it
        self.run_harmless()
        for service in self._services:
            assert service.child.poll() is None, self.last_words()
            assert (why := service.ready()) is None, why

    def fuzz(self, examples: int, *, largest: int, start: int | None) -> None:
        """Send random commands: always the same ones if `start` is None, else those that `start` seeds."""

        @settings(
            max_examples=examples,
            derandomize=start is None,
            database=None,
            deadline=None,
            phases=(Phase.generate,),  # no shrinking: earlier examples are part of the cause
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        )
        @given(hostile.commands(self._queue, [b"a", b"b", b"c"], largest=largest).map(Attack))
        def attack(commands: Attack) -> None:
            try:
                self.round(commands.commands)
            except AssertionError as error:
                error.add_note("\n".join(" ".join(repr(word[:200]) for word in one) for one in commands.commands))
                raise

        (attack if start is None else seed(start)(attack))()

    def last_words(self) -> list[str]:
        """Return the last lines of the services' logs, and their exit codes."""
        return [f"{service.child.poll()}: {''.join(service.lines[-8:])}" for service in self._services]

    def lift(self) -> None:
        """Check that the doctor finishes, that every log line is JSON, and that both services exit with 0."""
        seen = self._cli.run("doctor", "--queue", self._queue, "--json")
        assert seen.returncode in (0, 1), seen.stderr
        assert isinstance(json.loads(seen.stdout), list), seen.stdout
        for words in (["dead"], ["jobs"], ["queues"], ["show", "a"], ["explain", "a"]):
            shown = self._cli.run(*words, "--queue", self._queue)
            assert shown.returncode in (0, 1), shown.stderr
            assert "Traceback" not in shown.stderr
        assert [service.end() for service in self._services] == [0, 0], self.last_words()
        for service in self._services:
            for line in service.lines:
                assert isinstance(json.loads(line), dict), line
                assert len(line) <= 8193


@contextmanager
def siege(cli: Cli, queue: str, raw: Any, url: str) -> Generator[Siege]:
    """Start a dispatcher and a worker on a queue, and a client that has a producer's rights."""
    (cli.folder / "tasks.py").write_text(TASKS)
    cli.environment["EVSCHED_QUEUES"] = queue
    producer: Any = hostile.producer(raw, url)
    services = [Service(cli, "dispatcher"), Service(cli, "worker", "tasks:app", "--concurrency", "20")]
    try:
        besieged = Siege(cli, queue, producer, services)
        besieged.await_ready()
        yield besieged
        besieged.lift()
    finally:
        for service in services:
            service.kill()
        producer.close()
