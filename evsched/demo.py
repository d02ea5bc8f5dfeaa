"""The demo: real processes and a real Redis run jobs that were scheduled in three ways, and it prints their lateness.

Two of the three ways use the wire protocol alone, as a client in another language does.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any, Final

import msgspec
import redis

from evsched import keys
from evsched.app import App
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.errors import ConfigError, EvschedError
from evsched.jobs.current_job import current_job
from evsched.services.worker_process import LINK
from evsched.transport.address import parse

app = App(queue="demo")

_READY: Final = 30.0
"""Seconds within which both processes must be ready."""

_PATIENCE: Final = 10.0
"""Seconds after the last due time within which every job must end; the others count as lost."""


_SETTLE: Final = 6.0
"""Seconds until a worker that was busy has the longer lease of an idle one."""


@app.task
async def lateness() -> float:
    return current_job().lateness


@contextlib.contextmanager
def service(url: str, *words: str, **environment: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a service of evsched as a process of its own, which ends with this one."""
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-m", "evsched", *words],
        env={
            **os.environ,
            "EVSCHED_LOG_LEVEL": "WARNING",
            **environment,
            "EVSCHED_URL": url,
            LINK: str(theirs.fileno()),
        },
        pass_fds=[theirs.fileno()],  # they end with this process, however that ends
        start_new_session=True,  # Ctrl-C is for this process, which then ends them
    )
    theirs.close()
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        ours.close()


def run_demo(url: str, jobs: int, seconds: float, idle: float) -> int:
    """Run the demo on the Redis at `url`; return 0 if no job was lost and none was early.

    Raises:
        EvschedError: a process did not start.
        ConfigError: the URL is that of sentinels or a cluster. The demo is also a foreign client, of one server.
    """
    if parse(url).sentinels is not None or parse(url).nodes:
        raise ConfigError("the demo needs one server, redis://HOST:PORT: it cannot use sentinels or a cluster")
    client: Any = redis.Redis.from_url(url, protocol=2, driver_info=None, socket_timeout=30)
    ours = SyncClient(url)
    with service(url, "dispatcher", "--queue", app.queue) as one, service(url, "worker", "evsched.demo:app") as two:
        try:
            print("a dispatcher process and a worker process are starting", flush=True)
            _wait_until_ready(ours, one, two)
            late = _watch(client, _schedule(client, ours, jobs, seconds), seconds)
            print(f"idle now: after {_SETTLE:g} s, counting the commands that reach Redis for {idle:g} s", flush=True)
            time.sleep(_SETTLE if idle > 0 else 0)
            sent = len(sent_commands(client, idle)) / idle if idle > 0 else 0.0
        finally:
            ours.close()
            client.close()
    return _report(jobs, late, sent)


def _wait_until_ready(ours: SyncClient, *children: subprocess.Popen[bytes]) -> None:
    job = new_job(lateness.name, (), {}, JobOptions())
    ours.enqueue(app.queue, [job])
    end = time.monotonic() + _READY
    while True:
        for child in children:
            if child.poll() is not None:
                raise EvschedError(f"a process of the demo ended with code {child.returncode}: its log is above")
        try:
            ours.result(app.queue, job.id, 0.5)
        except TimeoutError:
            if time.monotonic() > end:
                raise EvschedError(f"no job ran within {_READY:g} s") from None
        else:
            return


def _schedule(client: Any, ours: SyncClient, jobs: int, seconds: float) -> dict[bytes, str]:
    """Schedule in three ways in turn; return the reply list of each job and its way."""
    rng, replies = random.Random(), dict[bytes, str]()  # noqa: S311 - no secret
    base = time.time() + 0.3  # so that all are scheduled before the first is due
    schedule = keys.schedule(app.queue)
    for n in range(jobs):
        job_id, due = f"demo-{n}-{rng.randrange(10**9)}", base + rng.uniform(0, seconds)
        way = ("Python", "inline", "record")[n % 3]
        payload: dict[str, Any] = {"task": lateness.name, "reply": True}
        if way == "Python":
            ours.enqueue(app.queue, [new_job(lateness.name, (), {}, JobOptions(id=job_id, due=due, reply=True))])
        elif way == "inline":
            client.zadd(schedule, {msgspec.json.encode({**payload, "id": job_id}): due})
        else:
            client.hset(keys.job(app.queue, job_id), "payload", msgspec.json.encode(payload))
            client.zadd(schedule, {job_id: due})
        replies[keys.reply(app.queue, job_id).encode()] = way
    print(f"{jobs} jobs scheduled over {seconds:g} s: by the Python client, by ZADD, by HSET and ZADD", flush=True)
    return replies


def _watch(client: Any, replies: dict[bytes, str], seconds: float) -> list[float]:
    """Wait for the reply of each job, and print its lateness."""
    waiting, late = dict(replies), list[float]()
    end = time.monotonic() + seconds + _PATIENCE
    live = sys.stdout.isatty()
    while waiting and time.monotonic() < end:
        answer = client.blpop(list(waiting), timeout=1)
        if answer is None:
            continue
        way, reply = waiting.pop(answer[0]), msgspec.json.decode(answer[1])
        if reply["outcome"] != "done":
            continue
        late.append(reply["result"])
        line = f"{len(late):4} of {len(replies)}  {reply['id']:24} {way:8} {reply['result'] * 1e3:7.2f} ms late"
        if live:
            print(f"\r{line}", end="", flush=True)
        elif len(late) % 20 == 0:
            print(line, flush=True)
    if live:
        print()
    return late


def sent_commands(client: Any, seconds: float) -> list[str]:
    """Return the commands that clients send to Redis, as MONITOR shows them, without those inside scripts."""
    sent, end = list[str](), time.monotonic() + seconds
    with client.monitor() as monitor:
        while (left := end - time.monotonic()) > 0:
            if monitor.connection.can_read(timeout=left):
                command = monitor.next_command()
                if command["client_type"] != "lua":
                    sent.append(command["command"])
    return sent


def _report(jobs: int, late: list[float], sent: float) -> int:
    late = sorted(late)
    early = sum(value < 0 for value in late)

    def quantile(part: float) -> str:
        return f"{late[min(int(len(late) * part), len(late) - 1)] * 1e3:.2f} ms" if late else "-"

    report = {
        "jobs run": f"{len(late)} of {jobs}",
        "jobs lost": jobs - len(late),
        "jobs early": early,
        "lateness, half of the jobs": f"at most {quantile(0.5)}",
        "lateness, 99 of 100 jobs": f"at most {quantile(0.99)}",
        "lateness, all jobs": f"at most {quantile(1)}",
        "commands to Redis while idle": f"{sent:.2f} a second",
    }
    for name, value in report.items():
        print(f"{name:30}{value}")
    return 0 if len(late) == jobs and not early else 1
