"""Reports that Litestar takes orders for, and evsched's workers write. docs/litestar.md explains it.

In this folder, each in a terminal of its own:

evsched dispatcher
evsched worker litestar_app:app
uvicorn litestar_app:web
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import unquote

from litestar import Litestar, Request, Response, asgi, delete, get, post
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import Receive, Scope, Send
from msgspec import Meta, Struct
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


@asgi("/console", is_mount=True, copy_scope=False)
async def show_console(scope: Scope, receive: Receive, send: Send) -> None:
    # Litestar passes on the rest of the path. The console takes the whole path, and the part of it that leads here.
    root, path = f"{scope['root_path']}/console", unquote(scope["raw_path"].decode())
    whole: Any = {**scope, "path": f"{root}/" if path == root else path, "root_path": root}
    await console(whole, receive, send)  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def lifespan(_: Litestar) -> AsyncGenerator[None]:
    yield
    await console.state.console.close()
    await app.close()


def redis_is_down(_: Request[Any, Any, Any], error: StoreDown) -> Response[dict[str, str]]:
    return Response({"detail": "try again"}, status_code=503, headers={"Retry-After": "2"})


async def known_job(id: FromPath[str]) -> Job[list[str]]:  # noqa: A002 - the name in the path
    """Return the job of the path, for every handler that depends on it."""
    job = app.job(id)
    try:
        await job.status()
    except JobMissing:
        raise NotFoundException(f"there is no report {id}") from None
    return job


KnownJob = NamedDependency[Job[Any]]


class Order(Struct):
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}$")]
    pages: Annotated[int, Meta(ge=1, le=100)]


@post("/reports", status_code=202)
async def begin(data: JSONBody[Order]) -> dict[str, str]:
    job = await report.using(id=data.id, on_conflict="keep").enqueue(data.pages)
    return {"id": job.id}


@get("/reports/{id:str}", dependencies={"job": Provide(known_job)})
async def look(job: KnownJob, wait: Annotated[float, QueryParameter(ge=0, le=30)] = 0) -> dict[str, Any]:
    try:
        return {"id": job.id, "pages": await job.result(wait)}
    except TimeoutError:
        return {"id": job.id, "place": (await job.status()).place}
    except JobDead as error:
        raise HTTPException(str(error), status_code=410) from None


@delete("/reports/{id:str}", status_code=202, dependencies={"job": Provide(known_job)})
async def stop(job: KnownJob) -> None:
    try:
        await job.cancel()
    except JobMissing:
        raise HTTPException(f"report {job.id} has ended", status_code=409) from None


web = Litestar(
    route_handlers=[begin, look, stop, show_console],
    exception_handlers={StoreDown: redis_is_down},
    lifespan=[lifespan],
)
