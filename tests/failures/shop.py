"""A real HTTP server on this machine that can be switched off and on."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.proofs.test_probes import free_port


class Shop:
    """A service on this machine that can be switched off and on; while it is off, its port refuses."""

    def __init__(self, status=200):
        self.requests = 0
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                shop.requests += 1
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._handler, self._server = Handler, None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"

    def switch_on(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def switch_off(self):
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
