"""Requests go only to allowed hosts and public addresses, whatever the payload, DNS or a server contains.

The servers count the connections that they accept, so that a refusal is seen to come before the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evsched import events
from evsched.config import Config
from evsched.targets.targets_app import make_app
from tests.support.endpoint import Endpoint, Reply, always
from tests.support.names import names
from tests.support.site import Requests
from tests.support.system import system


async def test_a_redirect_to_a_private_address_is_not_followed(config: Config, raw: Any, queue: str) -> None:
    async with Endpoint(hosts=("127.0.0.2",)) as inside, Endpoint() as outside:
        outside.answer = always(Reply(307, {"location": f"http://inside.test:{inside.port}/"}))
        addresses = {"inside.test": "127.0.0.2", "shop.test": "127.0.0.1"}
        allowed = Config(
            http_hosts=(f"*:{inside.port}", f"*:{outside.port}"), http_networks=("127.0.0.1/32",), http_redirects=5
        )
        app = make_app(allowed, {}, names(lambda host: [addresses[host]]))
        async with system(config, app) as running:
            requests = Requests(running, raw, queue)
            why = await requests.reason(url=f"http://shop.test:{outside.port}/")
    assert f"http://shop.test:{outside.port} redirects to http://inside.test:{inside.port}: inside.test has" in why
    assert "inside.test has the address 127.0.0.2, which is not public" in why
    assert (len(outside.requests), inside.connections) == (1, 0)


async def test_a_resolver_that_changes_its_answer_changes_nothing(config: Config, raw: Any, queue: str) -> None:
    """The connection goes to the checked address, and the next one is checked again."""
    closing = always(Reply(headers={"connection": "close"}))
    answers, asked = [["127.0.0.2"], ["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]], list[str]()

    def find(host: str) -> Sequence[str]:
        asked.append(host)
        return answers.pop(0)

    async with (
        Endpoint(closing, hosts=("127.0.0.2",)) as outside,
        Endpoint(hosts=("127.0.0.1",), port=outside.port) as inside,
    ):
        allowed = Config(http_hosts=(f"*:{outside.port}",), http_networks=("127.0.0.2/32",))
        async with system(config, make_app(allowed, {}, names(find))) as running:
            requests, url = Requests(running, raw, queue), f"http://rebind.test:{outside.port}/"
            await requests.result(url=url)
            assert "127.0.0.1, which is not public" in await requests.reason("two", url=url)
            await requests.result("three", url=url)
    assert asked == ["rebind.test"] * 3
    assert (outside.connections, inside.connections) == (2, 0)


HOSTILE = [
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0x7f.0x0.0x0.0x1", "0177.0.0.1",
    "127.000.000.001", "0.0.0.0", "0", "localhost", "LOCALHOST", "localhost.", "127.0.0.1.", "[::1]", "[::]",
    "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::1%25lo]", "[::1%lo]",
    "[127.0.0.1]", "[2002:7f00:1::]", "[2002:a00:1::]", "[2001:0:7f00:1::]", "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[fd00:ec2::254]", "[fe80::1]", "[fec0::1]", "[ff02::1]",
    "169.254.169.254", "2852039166", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "100.100.100.200",
    "192.0.0.192", "168.63.129.16", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1",
    "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "\u24db\u24de\u24d2alhost", "\uff4cocalhost",
    "127.0.0.1\\@example.com",
    "example.com@127.0.0.1", "user:pass@127.0.0.1", "127.0.0.1\t", "127.0.0.1 ", "127.0.0.1%00", "%3127.0.0.1", "a..b",
    "xn--127-0-0-1.", "private.test", "mapped.test", "mixed.test", "tunnel.test",
]  # fmt: skip

NAMES = {
    "private.test": ["127.0.0.1"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "mixed.test": ["::1", "10.0.0.1", "127.0.0.1"],
    "tunnel.test": ["2002:7f00:1::1", "64:ff9b::7f00:1"],
}


async def test_no_hostile_address_is_connected_to(config: Config, raw: Any, queue: str) -> None:
    async with Endpoint(hosts=("127.0.0.1", "::1")) as inside:
        allowed = Config(http_hosts=("*", f"*:{inside.port}"), http_redirects=5)
        app = make_app(allowed, {}, names(NAMES.get))
        async with system(config, app) as running:
            requests = Requests(running, raw, queue)
            for n, host in enumerate(HOSTILE):
                for scheme in ("http", "https"):
                    requests.schedule(f"{scheme}-{n}", url=f"{scheme}://{host}:{inside.port}/")
            dead = await running.recorder.wait(events.JobBuried, count=2 * len(HOSTILE))
    assert dead.outcome == "dead"
    assert running.recorder.of(events.Retrying) == []
    assert inside.connections == 0
