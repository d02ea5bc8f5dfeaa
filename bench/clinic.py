"""The app of the pictures: a company that reminds patients and bills for clinics. No name in it is a real one."""

from __future__ import annotations

import asyncio
import random

from evsched import App, Retry

app = App(name="clinic")

CLINICS = ("seeblick", "westend", "lindenhof", "am-markt")


@app.task(queue="mail")
async def send_mail(address: str, subject: str = "Your appointment") -> None:
    await asyncio.sleep(random.random() * 0.05)


@app.task(queue="webhooks", retry=Retry(attempts=2, interval=5), redact=("secret",))
async def deliver_webhook(clinic: str, appointment: int, secret: str = "") -> None:
    await asyncio.sleep(random.random() * 0.1)
    if clinic == "seeblick" and appointment % 3 == 0:
        raise ConnectionError("no connection to seeblick.example:443")
    if appointment % 97 == 0:
        raise ValueError("tariff 03230 is not in the catalog")


@app.task(queue="exports", timeout=120)
async def export_claims(clinic: str) -> dict[str, int]:
    await asyncio.sleep(20)
    return {"rows": 1206}


@app.task(queue="reminders")
async def remind(patient: int) -> None:
    await asyncio.sleep(0.01)


app.limit("webhooks", group="seeblick", concurrency=2)


@app.recurring("*/1 * * * *", queue="exports")
@app.task
async def sync_calendars() -> None:
    await asyncio.sleep(1)


@app.recurring("30 2 * * *", queue="exports", zone="Europe/Berlin")
@app.task
async def nightly_report() -> None: ...


@app.recurring("0 9 * * mon-fri", queue="mail", zone="Europe/Berlin")
@app.task
async def morning_list() -> None: ...


async def load(seconds: float) -> None:
    """Schedule jobs for a time, as the programs of such a company do."""
    for number in range(int(seconds * 20)):
        clinic, patient = random.choice(CLINICS), f"patient:{number % 500}"
        await send_mail.using(tags=(patient,)).enqueue(f"p{number % 500}@example.com")
        webhook = deliver_webhook.using(group=clinic, tags=(patient,))
        await webhook.enqueue(clinic, number, secret="not shown")
        if number % 5 == 0:
            await remind.using(delay=600 + random.random() * 20 * 3600, tags=(patient,)).enqueue(number % 500)
        if number % 200 == 0:
            await export_claims.using(group=clinic).enqueue(clinic)
        await asyncio.sleep(0.05)
    await app.close()
