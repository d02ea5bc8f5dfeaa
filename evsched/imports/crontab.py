"""Reads a crontab in all forms of Debian's cron: crontab(5), and /etc/cron.d with its column of users.

The command of a line becomes the argument of a task of the user's. A recurrence runs as cron does: the day of the month
or the day of the week is enough, unless one begins with `*`; runs that were missed are not made up for, and a run
begins although the one before it has not ended. CRON_TZ is cronie's; Debian's cron has one zone for all.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from pathlib import Path, PurePath
from typing import Final

from evsched.errors import ConfigError
from evsched.imports.imported import Call, Imported, digest
from evsched.recurrence.cron import find_zone

_VARIABLE: Final = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([^\s="']+))\s*=\s*(.*?)\s*""")
_ENTRY: Final = re.compile(r"(@\S+|\S+(?:[ \t]+\S+){4})[ \t]+(.+)")
_USER: Final = re.compile(r"(\S+)[ \t]+(.+)")
_STEP_OF_ONE: Final = re.compile(r"(?:^|[\s,])[^\s,*/-]+/")
"""A step after a single value, such as 5/15."""

_MAIL: Final = ("MAILTO", "MAILFROM")


def read_crontab(text: str, found: Imported, *, task: str, zone: str, users: bool = False) -> None:
    """Read a crontab, in which surrogates stand for bytes that are not UTF-8.

    `task`: gets each command. `zone`: until a line CRON_TZ. `users`: it has a column of users.
    """
    in_zone, known, entries = zone, set[str](), list[tuple[str, str, str, str]]()
    for number, line in enumerate(text.split("\n"), 1):
        where, line = f"line {number}", line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        if variable := _VARIABLE.fullmatch(line):
            name = next(filter(None, variable.groups()[:3]), "")
            if name == "CRON_TZ":
                in_zone = _unquoted(variable[4]) or zone
            elif name in _MAIL:
                if _unquoted(variable[4]):
                    found.remark(where, f"{name}: evsched sends no mail about the output of jobs")
            else:
                found.remark(where, f"{name}: commands do not get it, so set it in the task or for the worker")
            continue
        with found.part(where):
            rule, user, rest = _columns(line, users=users)
            if user and user not in known:
                known.add(user)
                found.remark(where, f"user {user}: its commands run as the user of the worker")
            entries.append((where, rule, in_zone, _command(rule, rest)))
    times = Counter(command for *_, command in entries)
    for where, rule, in_zone, command in entries:
        # With the rule only if that is needed: else a change of the time changes the recurrence, and makes no other.
        named = command if times[command] == 1 else f"{rule} {in_zone} {command}"
        call: Call = (task, [command], {})
        with found.part(where):
            name = f"{_word(command)}-{digest(named)}"
            found.recurrence(where, name, call, rule=rule, zone=in_zone, misfire="skip", overlap="allow")
    found.remarks.sort(key=lambda remark: int(remark.where.removeprefix("line ")))


def _columns(line: str, *, users: bool) -> tuple[str, str, str]:
    """Return the rule of an entry, its user, "" = it names none, and its command with the input.

    Raises:
        ConfigError: the line is not an entry.
    """
    entry = _ENTRY.fullmatch(line)
    rest = entry and (_USER.fullmatch(entry[2]) if users else entry)
    if entry is None or rest is None:
        columns = "a user, and a command" if users else "and a command"
        raise ConfigError(f"it is not an entry, which has five fields or a name such as @daily, {columns}")
    return " ".join(entry[1].split()), rest[1] if users else "", rest[2]


def _command(rule: str, text: str) -> str:
    """Return the command of an entry.

    Raises:
        ConfigError: no recurrence can run it as cron does.
    """
    command, stdin = split_command(text)
    if rule == "@reboot":
        raise ConfigError("@reboot: no recurrence runs at a start; use a service of the system for the command")
    if stdin:
        raise ConfigError("%: a command gets no input from the crontab; write it into the command, or escape it as \\%")
    if step := _STEP_OF_ONE.search(rule):
        wrong = step[0].strip(" ,")
        raise ConfigError(f"{wrong}...: crons differ about a step without a range; write 5-59/15 for 5/15")
    if not command.isascii() and any("\udc80" <= one <= "\udcff" for one in command):
        raise ConfigError("the command is not UTF-8, in which jobs are written: convert the file with iconv")
    return command


def split_command(text: str) -> tuple[str, str]:
    """Return the command of a line, and its standard input, which follows the first `%` that has no backslash."""
    command, at = "", 0
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ("%", "\\"):
            at += 1
        elif text[at] == "%":
            return command.rstrip(), text[at + 1 :]
        command += text[at]
        at += 1
    return command, ""


def _word(command: str) -> str:
    """Return the name of the program that a command runs."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote is not closed
        words = command.split()
    return PurePath(next(iter(words), "")).name


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


_LOCALTIME: Final = Path("/etc/localtime")


def machine_zone() -> str:
    """Return the name of this machine's time zone, by which its cron runs.

    Raises:
        ConfigError: it cannot be found out.
    """
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named and _LOCALTIME.exists():
        named = str(_LOCALTIME.resolve()).partition("zoneinfo/")[2]
    elif not named:
        named = "UTC"
    try:
        return find_zone(named).key
    except ConfigError:
        raise ConfigError("the time zone of this machine has no name: give it, such as --zone Europe/Berlin") from None
