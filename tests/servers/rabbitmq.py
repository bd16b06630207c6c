"""A RabbitMQ of one test run's own, started only by the tests that need it: it takes seconds and 120 MB."""

import os
import shutil
import signal
import socket
from pathlib import Path
from threading import Event

from tests.servers import net, packages
from tests.servers.process import StepFailed, comes_true, launch, send, tail

_PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server")
_READY_SECONDS = 300


def find() -> str | None:
    """The program, without the wrapper of Debian's that drops to the account of its service."""
    return next((path for path in _PROGRAMS if os.access(path, os.X_OK)), None)


def install(log: Path) -> str | None:
    """The program from Debian's package, where we may install; None if there is none."""
    if find() is None and packages.can_install():
        packages._refresh_lists(log, Event())
        packages._apt(["install", "rabbitmq-server"], log, Event())
    return find()


class RabbitMQ:
    """One node on loopback, on ports of its own, with an epmd of its own."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder, self._program = folder, program
        self.port, self._distribution, self._epmd = (net.free_port() for _ in range(3))
        self._log = str(folder / "rabbitmq.log")
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text("log.console = false\n")
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        self._pid = 0

    def start(self) -> None:
        """Start, also again with the same data, and wait until it takes connections."""
        settings = {
            "HOME": self._folder,
            "RABBITMQ_NODENAME": f"jq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._distribution,
            "RABBITMQ_MNESIA_BASE": self._folder / "mnesia",
            "RABBITMQ_LOG_BASE": self._folder,
            "RABBITMQ_CONFIG_FILE": self._folder / "rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self._folder / "plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": self._epmd,
        }
        words = [f"{name}={value}" for name, value in settings.items()]
        self._pid = launch(["env", *words, self._program], self._log, str(self._folder), "")
        if not comes_true(self._answers, _READY_SECONDS, 0.1):
            self.kill()
            raise StepFailed(f"RabbitMQ did not start in {_READY_SECONDS} s:\n{tail(self._log)}")

    def kill(self) -> None:
        """SIGKILL, as a crash of its machine would."""
        for pid in self._processes():
            send([pid], signal.SIGKILL)
        comes_true(lambda: not self._processes(), 20)

    def remove(self) -> None:
        """End it and forget its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as client:
                client.settimeout(2)
                client.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(client.recv(1))
        except OSError:
            return False

    def _processes(self) -> list[int]:
        """The node and its helpers, found by what only they have in their environment."""
        mark = f"ERL_EPMD_PORT={self._epmd}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return [pid for pid in found if pid != os.getpid()]
