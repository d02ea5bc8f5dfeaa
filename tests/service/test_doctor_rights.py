"""The doctor checks the rights of Redis users, and the users of redis.conf have the rights of their roles."""

from __future__ import annotations

import re
from typing import get_args

from evsched.diagnostics import server_checks
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.server_checks import Role
from evsched.transport.call import folder
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.service.test_rights import USERS, url, words_of
from tests.support.examine import client, examine, problems

ROLES: tuple[Role, ...] = get_args(Role)

FORWARDED = {"XADD", "LPUSH", "RPUSH", "PUBLISH"}
"""The commands with which `forward` sends messages: which of them a worker needs depends on its jobs."""

READ = {"TIME", "SCAN"}
"""Commands that no role lists for its scripts: TIME is every user's, and SCAN is for the search among finished jobs."""


def test_doctor_checks_the_commands_of_the_scripts() -> None:
    def used(flag: str) -> set[str]:
        """Return the commands of the scripts with a flag, without those of the shared files."""
        texts = {path.stem: path.read_text() for path in folder().glob("*.lua")}
        bodies = [text for text in texts.values() if text.startswith(f"#!lua{flag}")]
        return {name for text in bodies for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", text)}

    def listed(lines: str) -> set[str]:
        return {words.split()[0] for words in lines.replace("·", "\n").splitlines() if words.split()}

    everything = used("") | used(" flags=allow-oom") | used(" flags=no-writes")
    shared = {
        name for path in folder().glob("_*.lua") for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", path.read_text())
    }
    checked = listed(server_checks.READS) | listed(server_checks.WRITES) | FORWARDED | READ
    assert everything | shared == checked
    assert used(" flags=no-writes") <= listed(server_checks.READS) | READ


async def test_users_of_redis_conf_have_the_rights_of_their_roles() -> None:
    with EmbeddedRedis() as server:
        raw = client(server)
        for name, rules in USERS:
            if name != "default":
                raw.execute_command("ACL", "SETUSER", name, *words_of(rules))
        assert {name for name, _ in USERS} == {"default", *ROLES}
        for role in ROLES:
            assert [finding.check for finding in await examine(server.url, role)] == ["appendfsync"], role
        raw.execute_command("ACL", "SETUSER", "worker", "-hset")
        raw.execute_command("ACL", "SETUSER", "dispatcher", "resetchannels")
        found = problems([*await examine(server.url, "worker"), *await examine(server.url, "dispatcher")])
        assert [(finding.check, finding.where) for finding in found] == [
            ("rights", "user worker"),
            ("rights", "user dispatcher"),
        ]
        assert "HSET evsched:{q}:job:x" in found[0].what
        assert "PSUBSCRIBE __keyspace@0__:evsched:{*}:schedule" in found[1].what
        assert "the line `user worker` in redis.conf" in found[0].mend
        raw.execute_command("ACL", "DELUSER", "worker")
        (unknown,) = [finding for finding in await examine(server.url, "worker") if finding.check == "rights"]
        assert (unknown.level, unknown.where) == ("info", "user default")
        # As the user `doctor` it has all the rights that it needs; as another it reports what it cannot check.
        assert problems(await examine(url(server, "doctor"), "doctor")) == []
        for user in ("producer", "client", "observer", "dispatcher"):
            found = await examine(url(server, user), "producer" if user == "producer" else "client")
            assert problems(found) == []
            assert {"rights"} < {finding.check for finding in found}
        sender = BatchingSender(url(server, "doctor"))
        assert await Audit(sender, ["q"], pause=0.0).run() == []
        await sender.close()
        log = raw.execute_command("ACL", "LOG")
        assert b"doctor" not in {entry[entry.index(b"username") + 1] for entry in log}
        raw.close()
