"""A real RabbitMQ for a test: a node on loopback with a folder, ports and a name of its own. It can be killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.patience import PATIENCE

PROGRAM = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin")  # Debian's wrapper changes the user
CONTROL = shutil.which("rabbitmqctl", path="/usr/lib/rabbitmq/bin")
EPMD = shutil.which("epmd")

LARGEST = 2_000_000
"""Bytes of a message, at most."""


class Rabbit:
    """The node. It keeps its data over a `kill` and a `start`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, self._dist, self._epmd_port = _free_ports(3)
        self.user, self.password = "tester", secrets.token_hex(8)
        config = folder / "rabbitmq.conf"
        config.write_text(
            f"default_user = {self.user}\ndefault_pass = {self.password}\n"
            "log.console = false\nlog.file.level = warning\nvm_memory_high_watermark.absolute = 512MB\n"
            f"max_message_size = {LARGEST}\nchannel_max = 16\n"
        )
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),  # the cookie of Erlang
            "RABBITMQ_NODENAME": f"evsched-{secrets.token_hex(4)}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self._names: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.password}@127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        assert EPMD is not None
        # Otherwise the node would start one that stays.
        self._names = subprocess.Popen([EPMD, "-port", str(self._epmd_port)], env=self._environment)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self._names is not None
        self._names.kill()
        self._names.wait(PATIENCE)

    def start(self) -> None:
        """Start the node; return when clients can connect."""
        assert PROGRAM is not None
        self._node = subprocess.Popen(
            [PROGRAM],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the shell that starts the node says that it was killed
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self._node.stdout is not None
        seen = list[str]()
        for line in self._node.stdout:
            seen.append(line)
            if "completed with" in line:
                return
        raise AssertionError("rabbitmq-server ended:\n" + "".join(seen))

    def low_on_memory(self, *, low: bool) -> None:
        """Have the node believe that it is low on memory, or no more; return when it does."""
        self._control("set_vm_memory_high_watermark", *(["0.0000001"] if low else ["absolute", "512MB"]))

    def add_user(self, name: str, *, writes: str) -> str:
        """Add a user that may only write to exchanges with matching names; return its URL."""
        self._control("add_user", name, self.password)
        self._control("set_permissions", name, "^$", writes, "^$")
        return self.url.replace(self.user, name)

    def _control(self, *words: str) -> None:
        subprocess.run(
            [str(CONTROL), "-n", self._environment["RABBITMQ_NODENAME"], *words],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )

    def kill(self) -> None:
        """End the node as a crash does."""
        if self._node is not None:
            # The node itself: the shell that started it waits for it, and ends then.
            os.kill(int((self._folder / "pid").read_text()), signal.SIGKILL)
            self._node.communicate(timeout=PATIENCE)
            self._node = None


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
