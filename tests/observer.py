"""An observer outside of the product: the bodies of jobs connect to its socket, and it sees which of them run.

The kernel ends the connection of a process that is killed, before anybody can know that it is dead. A process that is
stopped keeps its own: its body counts, as it may go on at any moment.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@contextmanager
def attend(address, name):
    """Let the observer at this address count the block as a running body of `name`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(f"{name}\n".encode())
        # The block begins when it is counted.
        connection.recv(1)
        yield


@dataclass
class Seen:
    """What was seen of one name: the instants (monotonic) of starts and ends, and how many ran at once at most."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    running: int = 0
    most: int = 0


class Observer:
    """Counts bodies by name, in a thread of its own, until end()."""

    def __init__(self, folder):
        self.address = str(folder / "observer")
        self._seen = defaultdict(Seen)
        self._names = {}
        self._open = set()
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self.address)
        self._door.listen(1000)
        self._selector.register(self._door, selectors.EVENT_READ)
        self._ending = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def of(self, name):
        """What was seen of a name so far."""
        return self._seen[name]

    @property
    def starts(self):
        """All starts of all names, in order."""
        return sorted(at for seen in list(self._seen.values()) for at in list(seen.starts))

    @property
    def running(self):
        """How many bodies run now."""
        return sum(seen.running for seen in list(self._seen.values()))

    @property
    def most(self):
        """By name, how many ran at once at most."""
        return {name: seen.most for name, seen in list(self._seen.items())}

    @property
    def pids(self):
        """The processes in which bodies run now."""
        return {_pid_of(connection) for connection in list(self._names)}

    def end(self):
        """Stop counting."""
        self._ending = True
        self._thread.join()
        for connection in [*self._open, self._door, self._selector]:
            connection.close()

    def _watch(self):
        while not self._ending:
            ready = [key.fileobj for key, _ in self._selector.select(0.1)]
            for connection in ready:
                if connection in self._open:
                    self._hear(connection)
            if self._door in ready:
                connection, _ = self._door.accept()
                self._open.add(connection)
                self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection):
        try:
            words = connection.recv(1000).decode()
        except OSError:
            words = ""
        if not words:
            self._forget(connection)
            return
        # What has ended before it began must not count beside it.
        for key, _ in self._selector.select(0):
            if key.fileobj in self._names and key.fileobj is not connection and not _has_more(key.fileobj):
                self._forget(key.fileobj)
        seen = self._seen[words.strip()]
        self._names[connection] = words.strip()
        seen.starts.append(time.monotonic())
        seen.running += 1
        seen.most = max(seen.most, seen.running)
        # One that was killed meanwhile is forgotten with the next look.
        with suppress(OSError):
            connection.sendall(b".")

    def _forget(self, connection):
        self._open.remove(connection)
        self._selector.unregister(connection)
        connection.close()
        name = self._names.pop(connection, None)
        if name is not None:
            self._seen[name].running -= 1
            self._seen[name].ends.append(time.monotonic())


def _pid_of(connection):
    size = struct.calcsize("3i")
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]


def _has_more(connection):
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
