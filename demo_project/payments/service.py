"""A payment service on this host: a real HTTP server that can be switched off and on again."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
#: between two looks of a running server at whether it is to stop
POLL_SECONDS = 0.02


class PaymentService:
    """POST /charge with {"order": ..., "card": ...} answers 201, or 404 for a card that it does not know."""

    def __init__(self, cards: set[str]) -> None:
        self.cards = cards
        #: append-only evidence: the orders that were paid, in the order of the calls
        self.charged: list[str] = []
        self._server: ThreadingHTTPServer | None = None
        self._socket = _bound(0)
        self._port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """The address; the same after the service was switched off and on."""
        return f"http://{HOST}:{self._port}/charge"

    def switch_on(self) -> None:
        """Accept connections. The service is off at first."""
        charged, cards = self.charged, self.cards

        class Answer(_Answer):
            """One request to this service."""

            def charge(self, order: str, card: str) -> bool:
                if card in cards:
                    charged.append(order)
                return card in cards

        server = ThreadingHTTPServer((HOST, self._port), Answer, bind_and_activate=False)
        server.daemon_threads = True
        server.socket.close()
        server.socket = self._socket
        server.server_activate()
        threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True).start()
        self._server = server

    def switch_off(self) -> None:
        """Refuse connections from now on. Does nothing if the service is off."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            # A port that is bound without listening refuses connections, and no other program gets it meanwhile.
            self._socket = _bound(self._port)

    def close(self) -> None:
        """Switch it off and give the port back."""
        self.switch_off()
        self._socket.close()


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(201 if self.charge(asked["order"], asked["card"]) else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def charge(self, order: str, card: str) -> bool:
        raise NotImplementedError

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line per request."""


def _bound(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((HOST, port))
    return found
