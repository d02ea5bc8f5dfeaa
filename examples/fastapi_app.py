"""Reports that FastAPI takes orders for, and evsched's workers write. docs/fastapi.md explains it.

In this folder, each in a terminal of its own:

evsched dispatcher
evsched worker fastapi_app:app
uvicorn fastapi_app:web
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.requests import HTTPConnection

from evsched import App, Job, JobDead, JobMissing, Retry, StoreDown
from evsched.console import Visitor, create
from evsched.steps import step


async def write(page: int) -> str:
    await asyncio.sleep(0.05)  # stands for work
    print(f"page {page}", flush=True)
    return f"the text of page {page}"


app = App(queue="reports")


@app.task(timeout=600, retry=Retry(attempts=5), retention=3600)
async def report(pages: int) -> list[str]:
    return [await step(f"page {page}", write, page) for page in range(1, pages + 1)]


async def find_visitor(request: HTTPConnection) -> Visitor | None:
    """Return the user whom this application knows: here, the browser has a cookie with STAFF_SECRET."""
    secret, given = os.environ.get("STAFF_SECRET", ""), request.cookies.get("staff", "")
    if secret and hmac.compare_digest(secret.encode(), given.encode()):
        return Visitor("staff", "operator")
    return None


console = create(find_visitor=find_visitor)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    yield
    await console.state.console.close()
    await app.close()


web = FastAPI(lifespan=lifespan)
web.mount("/console", console)


@web.exception_handler(StoreDown)
async def redis_is_down(_: Request, error: StoreDown) -> JSONResponse:
    return JSONResponse({"detail": "try again"}, 503, {"Retry-After": "2"})


async def known_job(id: str) -> Job[list[str]]:  # noqa: A002 - the name in the path
    """Return the job of the path, for every handler that depends on it."""
    job = app.job(id)
    try:
        await job.status()
    except JobMissing:
        raise HTTPException(404, f"there is no report {id}") from None
    return job


KnownJob = Annotated[Job[Any], Depends(known_job)]


class Order(BaseModel):
    id: str = Field(pattern=r"^[A-Za-z0-9-]{1,64}$")
    pages: int = Field(ge=1, le=100)


@web.post("/reports", status_code=202)
async def begin(order: Order) -> dict[str, str]:
    job = await report.using(id=order.id, on_conflict="keep").enqueue(order.pages)
    return {"id": job.id}


@web.get("/reports/{id}")
async def look(job: KnownJob, wait: Annotated[float, Query(ge=0, le=30)] = 0) -> dict[str, Any]:
    try:
        return {"id": job.id, "pages": await job.result(wait)}
    except TimeoutError:
        return {"id": job.id, "place": (await job.status()).place}
    except JobDead as error:
        raise HTTPException(410, str(error)) from None


@web.delete("/reports/{id}", status_code=202)
async def stop(job: KnownJob) -> None:
    try:
        await job.cancel()
    except JobMissing:
        raise HTTPException(409, f"report {job.id} has ended") from None
