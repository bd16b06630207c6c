"""A packing bench on this host: a real HTTP server, which sees from outside how many parcels are packed at once."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
PACK_SECONDS = 0.08
#: between two looks of a running server at whether it is to stop
POLL_SECONDS = 0.02


class PackingBench:
    """POST /pack with {"parcel": ..., "began": ...} takes `pack_seconds`, and answers 204. It counts all."""

    def __init__(self, pack_seconds: float | None = None) -> None:
        self._pack_seconds = PACK_SECONDS if pack_seconds is None else pack_seconds
        #: append-only evidence: (parcel, when its job began, by time.monotonic()), in the order of the calls
        self.packed: list[tuple[str, float]] = []
        #: the most parcels that were on the bench at once
        self.most = 0
        self._there, self._lock = 0, threading.Lock()
        bench = self

        class Request(_Request):
            """One call of this bench."""

            bench_ = bench

        self._server = ThreadingHTTPServer((HOST, 0), Request)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True).start()

    @property
    def url(self) -> str:
        """The address."""
        return f"http://{HOST}:{self._server.server_port}/pack"

    def pack(self, parcel: str, began: float) -> None:
        """Pack a parcel, and count meanwhile how many others are on the bench."""
        with self._lock:
            self._there += 1
            self.most = max(self.most, self._there)
            self.packed.append((parcel, began))
        time.sleep(self._pack_seconds)
        # Before the answer, so that a parcel whose job has ended is never counted.
        with self._lock:
            self._there -= 1

    def close(self) -> None:
        """Accept no connection any more."""
        self._server.shutdown()
        self._server.server_close()


class _Request(BaseHTTPRequestHandler):
    bench_: PackingBench

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bench_.pack(asked["parcel"], asked["began"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line per request."""
