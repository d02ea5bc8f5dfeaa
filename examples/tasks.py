"""A small app to run, watch and scrape: `evsched dev examples.tasks:app`, or grafana/compose.yml."""

from __future__ import annotations

import asyncio
import random

from evsched import App, Retry

app = App()


@app.task(timeout=30, retry=Retry(attempts=3, interval=0.5, jitter=0.5))
async def send_mail(to: str, subject: str = "") -> int:
    await asyncio.sleep(random.uniform(0.01, 0.2))  # noqa: S311
    if random.random() < 0.05:  # noqa: S311
        raise ConnectionError(f"the mail server of {to} does not answer")
    return len(subject)


@app.recurring(every=2)
@app.task(timeout=1, retry=Retry(attempts=1))  # it recurs every 2 s, so a retry would only be late
async def mail_all() -> None:
    await send_mail.enqueue_many([(f"user{n}@example.com", "hello") for n in range(20)])
