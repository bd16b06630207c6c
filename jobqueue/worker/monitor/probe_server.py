"""The HTTP server of the probes. It shares a process with the renewal of leases, and anybody may connect to it."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

logger = logging.getLogger("jobqueue.worker")

#: connections at once, and how long each may last: more would use up the files and threads of the process
CONNECTIONS_MAX = 16
REQUEST_SECONDS = 5.0


class ProbeServer(ThreadingMixIn, TCPServer):
    """Listens on IPv4 and IPv6. Has CONNECTIONS_MAX connections at most, each for REQUEST_SECONDS at most."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, answer: Callable[[str], tuple[int, str]]) -> None:
        """`answer` gives the status and the text for a path. Raises OSError if the port is taken."""
        both = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both else socket.AF_INET
        self._free = threading.Semaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        #: when each connection ends at the latest, the oldest first
        self._ends: dict[socket.socket, float] = {}
        super().__init__(("", port), _handler(answer))

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread. If there are too many, the oldest is cut off: one that answers is never that old."""
        if not self._free.acquire(blocking=False):
            self._cut_off(oldest=True)
            self._free.acquire()
        with self._lock:
            self._ends[request] = time.monotonic() + REQUEST_SECONDS
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        """Twice a second, and after each connection."""
        self._cut_off()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that has ended is no error of ours."""
        if not isinstance(error := sys.exception(), OSError):
            logger.error("a request to the probes failed; the worker goes on", exc_info=error)

    def _cut_off(self, *, oldest: bool = False) -> None:
        """End the connections whose time is over; or the oldest that no one has ended yet."""
        with self._lock:
            now = time.monotonic()
            for request, ends_at in self._ends.items():
                if ends_at > now and not oldest:
                    return
                if ends_at:
                    self._ends[request] = 0.0
                    # Its thread reads the end of the stream, and closes it.
                    with suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)
                    oldest = False

    def _forget(self, request: Any) -> None:
        with self._lock:
            del self._ends[request]
        self._free.release()


def _handler(answer: Callable[[str], tuple[int, str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def _send(self, *, with_body: bool) -> None:
            status, text = answer(self.path.split("?")[0])
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: probes arrive every few seconds."""

    return Handler
