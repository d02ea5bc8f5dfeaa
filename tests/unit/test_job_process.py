"""The end of a link that a process holds: the newest report reaches its own run, and frames arrive whole."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from evsched.execution import process_pool
from evsched.execution.process_pool import Reported, Returned
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Done, FetchedJob, Forwarded, Message, Retried
from evsched.services.job_process import ProgressReports, WorkerLink
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


class Worker:
    """The worker's end, which notes the answers and can wait for one."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        self.answers = list[process_pool.Answer]()
        self._received = bytearray()
        self._arrived = asyncio.Event()
        asyncio.get_running_loop().add_reader(own, self._receive)

    def _receive(self) -> None:
        self._received += self.own.recv(65_536)
        while len(self._received) >= (
            end := process_pool.LENGTH + int.from_bytes(self._received[: process_pool.LENGTH], "big")
        ):
            self.answers.append(process_pool.read_answer(self._received[process_pool.LENGTH : end]))
            del self._received[:end]
        self._arrived.set()

    async def until(self, wanted: process_pool.Answer) -> None:
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.answers:
                self._arrived.clear()
                await self._arrived.wait()


@contextmanager
def linked() -> Generator[tuple[Worker, WorkerLink]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Worker(ours), WorkerLink(theirs)
        with suppress(ValueError):  # the test has closed it
            asyncio.get_running_loop().remove_reader(ours)


async def test_the_newest_report_arrives_however_many_there_are() -> None:
    with linked() as (worker, link):
        sender = ProgressReports(link)
        for n in range(10_000):
            sender.add(Progress(n, 10_000))
        await worker.until(Reported(Progress(9999, 10_000)))
        assert len(worker.answers) < 100
        note = "\x00" * 200
        sender.add(Progress(1e300, -1e300, note))
        await worker.until(Reported(Progress(1e300, -1e300, note)))
        sender.end()


async def test_last_report_arrives_before_the_reply() -> None:
    with linked() as (worker, link):
        sender = ProgressReports(link)
        for n in range(10):
            sender.add(Progress(n))
        sender.end()
        link.send(Returned(b"1"))
        await worker.until(Returned(b"1"))
        assert worker.answers[-2:] == [Reported(Progress(9)), Returned(b"1")]


async def test_each_run_receives_only_its_own_reports() -> None:
    with linked() as (one, first), linked() as (two, second):
        senders = ProgressReports(first), ProgressReports(second)
        for n, sender in enumerate(senders):
            sender.add(Progress(n))
        await one.until(Reported(Progress(0)))
        await two.until(Reported(Progress(1)))
        senders[0].end()
        senders[0].add(Progress(2))  # such as by a thread that the handler has left
        following = ProgressReports(first)
        following.add(Progress(3))
        await one.until(Reported(Progress(3)))
        for sender in (senders[1], following):
            sender.end()
        assert set(one.answers) == {Reported(Progress(0)), Reported(Progress(3))}
        assert set(two.answers) == {Reported(Progress(1))}


async def test_reports_to_a_vanished_worker_raise_nothing() -> None:
    with linked() as (worker, link):
        asyncio.get_running_loop().remove_reader(worker.own)
        worker.own.close()
        sender = ProgressReports(link)
        sender.add(Progress(1))
        sender.add(Progress(2))
        sender.end()


VALUES: list[process_pool.Answer] = [
    Returned(b"x" * 300_000),
    Reported(Progress(1, None, "half")),
    process_pool.RunEnded(Retried(float("inf"), "attempt 1 of 2")),
    process_pool.RunEnded(
        Forwarded(b"null", 1.0, True, message=Message("left", "q", b"text"), otherwise=Retried(1.0, "refused"))
    ),
    process_pool.RunEnded(Done(b"null", 1.0, reply=False)),
    process_pool.Raised("failed", "ValueError", kinds=frozenset({"builtins.ValueError"})),
]


async def test_answers_arrive_as_they_were_sent() -> None:
    with linked() as (worker, link):
        sending = asyncio.to_thread(lambda: [link.send(value) for value in VALUES])
        await asyncio.gather(sending, worker.until(VALUES[-1]))
        assert worker.answers == VALUES


def test_an_order_is_read_however_it_is_cut() -> None:
    order = process_pool.CallHandler("tasks", "pay", FetchedJob("a", 1, 2.5, b'{"task":"pay"}'), "q", 0.25)
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        reading = thread.submit(WorkerLink(theirs).receive)
        for byte in process_pool.frame(order):
            ours.send(bytes([byte]))
        assert reading.result(PATIENCE) == order
