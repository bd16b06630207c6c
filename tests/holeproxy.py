"""A proxy between a worker and its database that lets one connection hang: no byte passes, and nothing is closed."""

import re
import socket
import threading
from contextlib import suppress


class HoleProxy:
    """Passes everything on until arm(); then the first connection that sends `needle` hangs for good, for both sides.

    The packet with the needle does not reach the server. Other connections, and later ones, are passed on.
    """

    def __init__(self, port):
        self._server_port, self._needle, self._closed = port, None, False
        self._lock, self._sockets = threading.Lock(), []
        #: set when a connection hangs
        self.holed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, needle):
        """The next packet in which this regular expression is found is the last one of its connection."""
        self._needle = re.compile(needle)

    def close(self):
        """End all connections."""
        with self._lock:
            self._closed = True
        for one in (self._listener, *self._sockets):
            # close() alone would do nothing while a thread waits for a byte of it.
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
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
        try:
            while data := source.recv(65_536):
                if asks and self._matches(data):
                    hangs.set()
                    self.holed.set()
                if hangs.is_set():
                    return
                target.sendall(data)
            if not hangs.is_set():
                target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone; the other one is to hear of it.
            if not hangs.is_set():
                target.close()

    def _matches(self, data):
        with self._lock:
            if self._needle is None or not self._needle.search(data):
                return False
            self._needle = None
            return True
