"""A crontab becomes recurrences with cron's own times, and a remark for each line that no recurrence expresses."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from croniter import croniter

from evsched.errors import ConfigError
from evsched.imports import crontab
from evsched.imports.crontab import machine_zone, read_crontab
from evsched.imports.imported import Imported
from evsched.jobs.job import decode
from evsched.recurrence.recurrence import Declared, read_recurrence

FILE = Path(__file__).with_name("crontab.txt").read_text()
LINES = FILE.split("\n")

ZONES = {"in-india": "Asia/Kolkata", "in-india-too": "Asia/Kolkata", "in-japan": "Asia/Tokyo"}
"""The zones of the commands after a line CRON_TZ."""

BEGIN = datetime(2026, 11, 28, 19, 0, tzinfo=UTC)


def read(text: str, **given: Any) -> Imported:
    found = Imported("default")
    read_crontab(text, found, task="run", zone="UTC", **given)
    return found


def declared(found: Imported) -> dict[str, Declared]:
    """Return the recurrences by the place of their entries."""
    return {entry.where: entry.made for entry in found.entries if isinstance(entry.made, Declared)}


def command(of: Declared) -> str:
    return decode(of.payload)["args"][0]


RECURRENCES = declared(read(FILE))


def test_file_of_a_hundred_lines_becomes_recurrences_and_remarks() -> None:
    found = read(FILE)
    assert len(LINES) - 1 == 100
    entries = {n for n, line in enumerate(LINES, 1) if re.match(r"\s*[\d*@]", line)}
    left_out = {n for n, line in enumerate(LINES, 1) if "@reboot" in line or "all is well" in line}
    assert {f"line {n}" for n in entries - left_out} == set(RECURRENCES)
    assert {remark.where: remark.why.partition(":")[0] for remark in found.remarks} == {
        "line 2": "SHELL",
        "line 3": "PATH",
        "line 4": "MAILTO",
        "line 5": "HOME",
        "line 6": "LANG",
        **{f"line {n}": "%" if "%" in LINES[n - 1] else "@reboot" for n in left_out},
    }
    assert len({one.name for one in RECURRENCES.values()}) == len(RECURRENCES)


@pytest.mark.parametrize("where", RECURRENCES)
def test_next_fifty_times_are_those_of_another_reader_of_crontabs(where: str) -> None:
    one = RECURRENCES[where]
    words = LINES[int(where.removeprefix("line ")) - 1].split()
    rule = words[0] if words[0].startswith("@") else " ".join(words[:5])
    zone = ZoneInfo(ZONES.get(command(one).rpartition("/")[2], "UTC"))
    assert one.zone == zone.key
    # Its option for what it calls a bug: a field that begins with * makes both days necessary, as cron documents it.
    others = croniter(rule, BEGIN.astimezone(zone), implement_cron_bug=True, max_years_between_matches=100)
    expected = [others.get_next(float) for _ in range(50)]
    assert [*islice(read_recurrence(one).walk(BEGIN.timestamp()), 50)] == expected


def test_recurrence_runs_as_cron_does() -> None:
    for one in RECURRENCES.values():
        assert (one.misfire, one.overlap) == ("skip", "allow")


def test_commands_arrive_without_the_escapes_of_the_crontab() -> None:
    commands = {command(one) for one in RECURRENCES.values()}
    assert "date +%Y-%m-%d >> /var/log/days" in commands
    assert 'echo "# is no comment here" # nor here' in commands
    assert "/usr/bin/tabs   with   blanks" in commands
    assert "/usr/bin/no-input" in commands
    (backslash,) = declared(read(r"* * * * * grep 'a\\\%\d' x")).values()
    assert command(backslash) == r"grep 'a\%\d' x"


def test_remarks_are_in_the_order_of_the_lines() -> None:
    assert [remark.where for remark in read("61 * * * * x\nHOME=/\n*/0 * * * * y").remarks] == [
        "line 1",
        "line 2",
        "line 3",
    ]


def test_crontab_that_wants_no_mail_has_no_remark() -> None:
    assert read('MAILTO=""\n@daily x').remarks == []


def test_column_of_users_is_read_and_each_user_is_named_once() -> None:
    text = (
        "17 * * * * root cd / && run-parts /etc/cron.hourly\n"
        "@daily root  /bin/b\n"
        "0 1 * * * www-data /bin/c\n"
        "* * * * * x"
    )
    found = read(text, users=True)
    assert [command(one) for one in declared(found).values()] == [
        "cd / && run-parts /etc/cron.hourly",
        "/bin/b",
        "/bin/c",
    ]
    assert [remark.where for remark in found.remarks] == ["line 1", "line 3", "line 4"]
    assert "user root" in found.remarks[0].why
    assert "five fields" in found.remarks[2].why


def test_name_follows_from_the_command_and_from_the_rule_if_commands_are_equal() -> None:
    def names(text: str) -> list[str]:
        return [one.name for one in declared(read(text)).values()]

    (name,) = names("0 1 * * * /bin/a x")
    assert name.startswith("a-")
    assert names("# new\n0 2 * * * /bin/b\n0 3 * * * /bin/a x")[1:] == [name]
    first, second, third = names("0 1 * * * /bin/a x\n0 2 * * * /bin/a x\n0 3 * * * /bin/a x")
    assert names("0 3 * * * /bin/a x\n0 1 * * * /bin/a x") == [third, first]
    assert len({name, first, second, third}) == 4
    assert names("0 1 * * * /bin/a\n" * 2)[1].endswith(".2")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("5/15 * * * * x", "write 5-59/15"),
        ("0 0 * * 1,3/2 x", "step without a range"),
        ("61 * * * * x", "minute"),
        ("0 0 31 2 * x", "never falls due"),
        ("0 0 * * fri-mon x", "day-of-week"),
        ("@every_minute x", "is not known"),
        ("* * * *", "five fields"),
        ("@daily", "five fields"),
        ("* * * * * %in", "empty|no input"),
        ("CRON_TZ=Mars/Olympus\n0 0 * * * x", "zone 'Mars/Olympus' is not known"),
    ],
)
def test_line_that_cannot_be_expressed_has_a_remark(line: str, why: str) -> None:
    found = read(line)
    assert found.entries == []
    (remark,) = found.remarks
    assert re.search(why, remark.why), remark


def test_command_that_is_not_utf8_has_a_remark() -> None:
    (remark,) = read(b"0 0 * * * echo \xff".decode(errors="surrogateescape")).remarks
    assert "is not UTF-8" in remark.why


def test_zone_of_the_machine_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", ":Europe/Berlin")
    assert machine_zone() == "Europe/Berlin"
    monkeypatch.delenv("TZ")
    place = tmp_path / "usr/share/zoneinfo/America/Lima"
    place.parent.mkdir(parents=True)
    place.touch()
    monkeypatch.setattr(crontab, "_LOCALTIME", place)
    assert machine_zone() == "America/Lima"
    monkeypatch.setattr(crontab, "_LOCALTIME", tmp_path / "none")
    assert machine_zone() == "UTC"
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    with pytest.raises(ConfigError, match="--zone Europe/Berlin"):
        machine_zone()


def test_entries_of_one_import_can_be_written_as_json() -> None:
    assert msgspec.json.encode(read(FILE).remarks)
