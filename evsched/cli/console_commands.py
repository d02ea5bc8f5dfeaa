"""The commands of the console: serve its pages, and make the tokens with which its users sign in."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.command_client import client
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Url, acting, takes_settings, who_acts
from evsched.cli.output import Column, Moment, listing
from evsched.config import Config
from evsched.errors import JobMissing
from evsched.store.acts import named_operator

app = App(
    name="console",
    help="Serve web pages about queues, jobs, failures and history, on which users also act: console, token, tokens.",
    version=evsched.__version__,
)


@app.default
@takes_settings
def console(*, config: Config) -> None:
    """Serve the console: web pages that show what waits, runs, has ended, and why, and where operators act.

    As long as there is no token, everyone on this machine is an admin, and nobody else is answered. On an address that
    is not of the loopback, everyone must sign in. Use a proxy for TLS.

    Example: evsched console --port 8421
    """
    from evsched.services.service import run_console

    run_console(config)


User = Annotated[str, Parameter(help="The name of the user.")]


@app.command
@acting
def token(
    user: User,
    /,
    *,
    role: Annotated[
        Literal["viewer", "operator", "admin"] | None,
        Parameter(help="A viewer reads, an operator acts, an admin makes tokens as well."),
    ] = None,
    delete: Annotated[bool, Parameter(negative="", help="Delete the token of the user, and end the sessions.")] = False,
    url: Url = None,
) -> None:
    """Make the token with which a user signs in to the console, and print it. One that the user had is replaced.

    Example: evsched console token ana --role operator
    """
    if delete == (role is not None):
        raise UsageError("console token: give --role viewer, operator or admin; or --delete")
    from evsched.console.users import make_token, remove_token

    with client(url) as redis:
        by = named_operator(who_acts(redis.url), "cli")
        if role is not None:
            print(redis.run(make_token(user, role, redis.now(), by)))
        elif (done := redis.run(remove_token(user, by))) is None:
            raise JobMissing(f"{user} has no token")
        else:
            output.note(done)


@app.command
def tokens(*, json: Json = False, url: Url = None) -> None:
    """List the users of the console and their roles. The tokens themselves are nowhere.

    Example: evsched console tokens
    """
    from evsched.console.users import read_tokens

    with client(url) as redis:
        found = sorted(redis.send(read_tokens()).items())
    shown = [{"user": user, "role": one.role, "made": one.made, "by": one.by} for user, one in found]
    rows = ((user, one.role, Moment(one.made), one.by) for user, one in found)
    columns = (Column("user"), Column("role"), Column("made", 1), Column("by", 2))
    listing(json, shown, columns, rows, "nobody has a token")
