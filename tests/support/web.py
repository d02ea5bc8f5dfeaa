"""A scrape, as Prometheus does one: a GET over HTTP, and the page read back into figures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import PATIENCE

Figures = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def ask(url: str, request: bytes) -> bytes:
    """Send a request as it is to the host of a URL, and return the answer as it is."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    return answer


async def get(url: str) -> tuple[int, str]:
    """Return the status and the page."""
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    request = f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n"
    head, _, body = (await ask(url, request.encode())).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body.decode()


def read(page: str) -> Figures:
    """Return the figures of a page of metrics, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


class Scraped:
    """One scrape."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return a figure of evsched_<name>, None when there is none."""
        return self._figures.get((f"evsched_{name}", frozenset(labels.items())))

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label."""
        return {dict(labels)[label] for found, labels in self._figures if found == f"evsched_{name}"}

    def __len__(self) -> int:
        return len(self._figures)


async def scrape(url: str) -> Scraped:
    """Scrape a process."""
    status, page = await get(f"{url}/metrics")
    assert status == 200
    return Scraped(read(page))
