"""A proxy between a test and its database that loses answers: the server has done its work, and nobody hears of it."""

from __future__ import annotations

import re
import selectors
import socket
import threading
from collections.abc import Iterable
from contextlib import contextmanager, suppress

from django.db import connections

#: the end of a transaction, as drivers of all servers send it
COMMIT = r"COMMIT(?!TED)"
_CHUNK = 65_536


class CuttingProxy:
    """Passes everything on, until it is told to cut. Speaks no protocol, so the session must not be encrypted."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._needle, self._left = re.compile(b"$."), 0
        self._guard = threading.Lock()
        #: how many answers were lost
        self.cuts = 0
        #: a session that sends a request of more bytes is ended, and the server gets no more of it; None: of any length
        self.longest: int | None = None
        #: how many sessions were ended for that
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._links: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, needle: str, times: int = 1) -> None:
        """Lose the answers to the next `times` requests in which the pattern `needle` is found, and end their sessions.

        The request itself reaches the server, whole, and the session ends when the server has answered.
        """
        with self._guard:
            self._needle, self._left = re.compile(needle.encode()), times

    def answered(self, data: bytes) -> bytes:
        """What the client gets of an answer; a subclass may change it."""
        return data

    def refuses(self, asked: bytes) -> bool:
        """Whether this request ends its session; a subclass may change it."""
        return self.longest is not None and len(asked) > self.longest

    def reached(self) -> socket.socket | None:
        """The server's end of a new session; None: the client is turned away. A subclass may turn more away."""
        try:
            return socket.create_connection(self._target)
        except OSError:
            return None

    def end_sessions(self) -> None:
        """End those that are open now."""
        ended, self._links = self._links, []
        _end(ended)

    def close(self) -> None:
        """End all sessions, and accept no more."""
        _end([self._listener, *self._links])

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if (server := self.reached()) is None:
                    client.close()
                    continue
                self._links += [client, server]
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        asked = b""
        cutting = False
        with selectors.DefaultSelector() as ready, client, server, suppress(OSError, ValueError):
            for one in (client, server):
                ready.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    source = key.fileobj
                    data = source.recv(_CHUNK)
                    if not data:
                        return
                    if source is server:
                        if cutting:
                            return
                        asked = b""
                        client.sendall(self.answered(data))
                    else:
                        asked += data
                        if self.refuses(asked):
                            self.refused += 1
                            return
                        cutting = cutting or self._is_to_be_cut(asked)
                        server.sendall(data)

    def _is_to_be_cut(self, asked: bytes) -> bool:
        with self._guard:
            if not self._left or not self._needle.search(asked):
                return False
            self._left -= 1
            self.cuts += 1
            return True


def _end(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        with suppress(OSError):
            # Wakes the thread that waits for it.
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def cutting_proxy(using: str = "default", kind: type[CuttingProxy] = CuttingProxy):
    """For the block, every new session of alias `using`, in all threads, goes through the CuttingProxy it gives."""
    settings = connections[using].settings_dict
    before = {name: settings[name] for name in ("HOST", "PORT")}
    proxy = kind(before["HOST"], int(before["PORT"]))
    connections[using].close()
    settings.update(HOST="127.0.0.1", PORT=str(proxy.port))
    try:
        yield proxy
    finally:
        settings.update(before)
        connections[using].close()
        proxy.close()
