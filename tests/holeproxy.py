"""A proxy between a worker and its database that lets one connection hang: no byte passes, and nothing is closed."""

import re
import socket
import threading
from contextlib import suppress


class HoleProxy:
    """Passes everything on until arm(); then the first connection that sends `needle` hangs for good, for both sides.

    Other connections, and later ones, are passed on.
    """

    def __init__(self, port):
        self._server_port, self._closed = port, False
        self._needle = self._before = None
        self._heard = False
        #: while it is set, new connections hang from their first byte
        self.deaf = threading.Event()
        self._lock, self._sockets = threading.Lock(), []
        #: set when a connection hangs
        self.holed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, needle, *, heard=False, before=None):
        """The next packet in which this regular expression is found is the last one of its connection.

        It does not reach the server, or it does if it is to be `heard`, and its answer is swallowed. With `before`,
        only on a connection that has sent a packet with that meanwhile.
        """
        with self._lock:
            self._heard, self._before = heard, before and re.compile(before)
            self._needle = re.compile(needle)

    def close(self):
        """End all connections."""
        with self._lock:
            self._closed = True
        for one in (self._listener, *self._sockets):
            _end(one)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.deaf.is_set():
                with self._lock:
                    self._sockets.append(client)
                self.holed.set()
                continue
            server = socket.socket()
            with self._lock:
                self._sockets += [client, server]
                closed = self._closed
            try:
                server.connect(("127.0.0.1", self._server_port))
            except OSError:
                closed = True
            if closed:
                client.close()
                server.close()
                continue
            hangs = threading.Event()
            threading.Thread(target=self._pass, args=(client, server, hangs, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, hangs, False), daemon=True).start()

    def _pass(self, source, target, hangs, asks):
        near = set()
        try:
            while data := source.recv(65_536):
                if asks and self._matches(data, near):
                    hangs.set()
                    if self._heard:
                        target.sendall(data)
                    self.holed.set()
                if hangs.is_set():
                    return
                target.sendall(data)
            if not hangs.is_set():
                target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone; the other one is to hear of it.
            if not hangs.is_set():
                _end(target)

    def _matches(self, data, near):
        """`near` holds the needles whose `before` this connection has sent."""
        with self._lock:
            needle, before = self._needle, self._before
            if needle is None:
                return False
            if before is not None and needle not in near:
                if before.search(data):
                    near.add(needle)
                return False
            if not needle.search(data):
                return False
            self._needle = None
            return True


def _end(one):
    """Close it, and let its other side know: close() alone does nothing while a thread waits for a byte of it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
