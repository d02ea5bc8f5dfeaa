"""The commands about recurrences: look ahead, make, remove.

The list is in recurrence_list.py. The commands about deploys are in deploys.py, those about pauses in pauses.py, those
that run a recurrence by hand in requested_runs.py.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.deploys import prune, rollback
from evsched.cli.jobs import argument
from evsched.cli.options import Json, Queue, RecurrenceName, Url, client, whole
from evsched.cli.pauses import pause, resume
from evsched.cli.recurrence_list import list_recurrences
from evsched.cli.requested_runs import backfill, trigger
from evsched.cli.table import Column, Moment, sentence, table
from evsched.cli.time_args import parse_time
from evsched.cli.unknown_queues import client_of
from evsched.cli.usage import UsageError
from evsched.client import recurrence_operations
from evsched.client.new_job import JobOptions, check_job_options, new_job
from evsched.client.recurrence_operations import find_standing, read_stored
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError, EvschedError, JobMissing
from evsched.recurrence.look_ahead import runs_ahead
from evsched.recurrence.recurrence import Declared, Misfire, Overlap
from evsched.store.store import Store

app = App(
    name="recurrences",
    help="List, add, pause or remove recurrences: rules that make jobs again and again.",
    version=evsched.__version__,
)

Zone = Annotated[
    str | None,
    Parameter(
        help="The time zone, such as Europe/Berlin, of the rule and of times that have no offset. Default: UTC for the "
        "rule, this machine's zone for times."
    ),
]

_NEXT_MOST = 1000
"""The most times that are listed: with a window, each takes some 25 us."""

_LOOKED_MOST = 200_000
"""The most planned times that are looked at for them."""


@app.command(name="next")
def next_times(
    name: RecurrenceName,
    /,
    *,
    count: Annotated[
        int, Parameter(converter=whole, name=["--count", "-n"], help=f"How many times to list, 1 to {_NEXT_MOST}.")
    ] = 5,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> None:
    """Explain a rule in words, and list the planned times that will run next, in its zone and in yours.

    Example: evsched recurrences next nightly-report -n 10
    """
    if not 1 <= count <= _NEXT_MOST:
        raise UsageError(f"--count is {count}: from 1 to {_NEXT_MOST}")
    with client_of(url, queue) as redis:
        next_, fields = redis.send(Store(queue).next_planned(name)), redis.send(Store(queue).recurrence(name))
        if not fields:
            raise JobMissing(f"{name} is not a recurrence of queue {queue}")
        standing, now = redis.run(find_standing(Store(queue), next_ or 0.0, fields)), redis.now(queue)
        try:
            recurrence = redis.run(read_stored(Store(queue), name, fields))
        except ConfigError as error:  # what is not valid is the record in Redis, not the command line
            raise EvschedError(str(error)) from None
    looked = islice(runs_ahead(recurrence, standing, now, now), _LOOKED_MOST)
    ahead = list(islice((one for one in looked if one.runs or one.due is None), count))
    if json:
        output.as_json(
            {"words": recurrence.words(), "times": [{"planned": one.planned, "due": one.due} for one in ahead]}
        )
        return
    sentence(recurrence.words())
    zone = recurrence.rule.zone
    shown = [
        (
            in_zone(one.planned, zone),
            Moment(one.planned),
            "never: the window does not open" if one.due is None else Moment(one.due),
        )
        for one in ahead
    ]
    table((Column(f"in {zone.key}", 1), Column("here", 2), Column("due")), shown, "it does not recur any more")
    if (declared := recurrence.declared).window is not None and declared.overlap != "allow" and declared.after is None:
        sentence("Of several planned times that wait for the same opening of its window, only the first runs.")


def in_zone(moment: float, zone: Any) -> str:
    """Return a moment as the clock on a zone's wall shows it."""
    return datetime.fromtimestamp(moment, zone).isoformat(" ", "seconds")


@app.command
def add(
    name: RecurrenceName,
    task: Annotated[str, Parameter(help="The name of the task.")],
    arguments: Annotated[
        list[str] | None, Parameter(help="The arguments of the task, each as JSON.", negative="")
    ] = None,
    /,
    *,
    rule: Annotated[
        str, Parameter(help="When it runs: a cron rule ('0 9 * * mon-fri'), @daily, or 'every 90' (seconds).")
    ],
    zone: Zone = None,
    start: Annotated[str | None, Parameter(help="No occurrence before this time.")] = None,
    end: Annotated[str | None, Parameter(help="No occurrence after this time.")] = None,
    count: Annotated[int | None, Parameter(converter=whole, help="End after this many occurrences.")] = None,
    spread: Annotated[
        float,
        Parameter(help="Delay each occurrence by up to this many seconds, to spread the load."),
    ] = 0.0,
    misfire: Annotated[
        Misfire,
        Parameter(help="What to do about missed occurrences: run none, the newest, or all. all: with --overlap allow."),
    ] = "once",
    overlap: Annotated[
        Overlap, Parameter(help="What to do with an occurrence that is due while the one before it runs.")
    ] = "skip",
    window: Annotated[str | None, Parameter(help="When its jobs may start: a window, or the name of one.")] = None,
    after: Annotated[
        Literal["end"] | None, Parameter(help="Count the interval of --rule 'every ...' from the end of each run.")
    ] = None,
    skip: Annotated[
        str | None,
        Parameter(help="The calendar on whose days it makes no jobs; several with commas: evsched calendars."),
    ] = None,
    pause_after: Annotated[
        int | None, Parameter(converter=whole, help="Pause it after so many failures in a row.")
    ] = None,
    priority: Annotated[
        int | None, Parameter(converter=whole, help="The priority of its jobs, 0 to 9; higher runs first. Default: 5.")
    ] = None,
    group: Annotated[str | None, Parameter(help="The group of its jobs. Groups get equal shares of the queue.")] = None,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Add a recurrence, or change the one that has this name.

    Example: evsched recurrences add nightly report '"sales"' --rule '0 2 * * *' --zone Europe/Berlin
    """
    try:
        options = JobOptions(priority=priority, group=group, window=window)
        check_job_options(options)
        declared = Declared(
            name=name,
            rule=rule,
            payload=new_job(task, [argument(text) for text in arguments or ()], {}, options).payload,
            zone="UTC" if zone is None else zone,
            priority=priority,
            group=group,
            start=None if start is None else parse_time(start, zone),
            end=None if end is None else parse_time(end, zone),
            count=count,
            spread=spread,
            misfire=misfire,
            overlap=overlap,
            window=window,
            after=after,
            skip=skip,
            pause_after=pause_after,
        )
        with client(url) as redis:
            done, paused = redis.run(recurrence_operations.add(Store(queue), declared))
        print(f"{name} {done}" + (", and stays paused" if paused else ""))
    except ConfigError as error:
        raise UsageError(str(error)) from None


@app.command
def remove(name: RecurrenceName, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Delete a recurrence and its scheduled jobs. If the code declares it, the next worker that starts adds it again.

    Example: evsched recurrences remove nightly
    """
    with client_of(url, queue) as redis:
        redis.remove(queue, name)
    print(f"{name} removed")


app.default(list_recurrences)
app.command(list_recurrences, name="list")
app.command(pause)
app.command(resume)
app.command(trigger)
app.command(backfill)
app.command(prune)
app.command(rollback)
