"""Health answers over HTTP, from the scoreboard alone: they need no database and so can say that it is away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jobqueue.worker.shared.scoreboard import Hold, Scoreboard, State

logger = logging.getLogger("jobqueue.worker")

# The monitor ticks five times a second; silent for this long it hangs, and nobody has replaced it.
STALE_SECONDS = 30.0


_LOCKS = {
    "locks_acquired": "Locks that jobs acquired, told every ten seconds",
    "locks_failed": "Locks that jobs did not get in time",
    "locks_contended": "Locks that jobs got, and not at once",
    "locks_reentered": "Jobs that came back to a lock after its end",
    "locks_wait_us": "Microseconds that jobs waited for locks",
}


class Probe:
    """GET /live: the monitor ticks. /ready: and a child runs, and the database answers. /metrics: Prometheus text.

    /ready says no when the monitor has not ticked for `silent_seconds`, /live after 30 s.
    """

    def __init__(self, scoreboard: Scoreboard, port: int, silent_seconds: float = STALE_SECONDS) -> None:
        self._scoreboard, self._silent_seconds = scoreboard, silent_seconds
        server = ThreadingHTTPServer(("", port), _handler(self._answer))
        threading.Thread(target=server.serve_forever, name="probe", daemon=True).start()
        logger.info("probes on port %d: /live /ready /metrics", server.server_port)

    @property
    def _silent(self) -> float:
        return time.monotonic() - float(self._scoreboard.header.monitor_ticked_at)

    def _answer(self, path: str) -> tuple[int, str]:
        if path == "/live":
            silent = self._silent
            return (
                (200, "live\n")
                if silent < STALE_SECONDS
                else (503, f"the monitor has been silent for {silent:.0f} s\n")
            )
        if path == "/ready":
            return self._ready()
        if path == "/metrics":
            return self._metrics()
        return 404, "known: /live /ready /metrics\n"

    def _ready(self) -> tuple[int, str]:
        header: Any = self._scoreboard.header
        if header.stop:
            return 503, "stopping\n"
        if header.database_down:
            return 503, "the database is unreachable\n"
        if (silent := self._silent) > self._silent_seconds:
            return 503, f"the monitor has been silent for {silent:.0f} s\n"
        running = sum(slot.state == State.RUNNING for slot in self._scoreboard.slots)
        return (200, f"ready: {running} children\n") if running else (503, "no child is running\n")

    def _metrics(self) -> tuple[int, str]:
        try:
            from prometheus_client import CollectorRegistry, Gauge, generate_latest
        except ImportError:
            return 501, 'prometheus-client is not installed: pip install "jobqueue[metrics]"\n'
        registry = CollectorRegistry()
        for name, words, value in self._figures():
            Gauge(f"jobqueue_worker_{name}", words, registry=registry).set(value)
        return 200, generate_latest(registry).decode()

    def _figures(self) -> list[tuple[str, str, int]]:
        slots = self._scoreboard.slots
        holds = [lease_slot.hold for lease_slots in self._scoreboard.lease_slots for lease_slot in lease_slots]
        return [
            ("children", "Child processes that run", sum(r.state == State.RUNNING for r in slots)),
            ("jobs_running", "Jobs whose body runs now", holds.count(Hold.RUNNING)),
            ("jobs_claimed", "Jobs claimed and not started", holds.count(Hold.WAITING)),
            ("jobs_ended", "Runs that ended since the worker started", sum(r.finished for r in slots)),
            ("jobs_failed", "Runs that failed since the worker started", sum(r.failed for r in slots)),
            (
                "jobs_allowed",
                "Jobs that may run at once now, less than usual while the database is in trouble",
                self._sum("level"),
            ),
            (
                "queues_slowed",
                "Queues with a task whose runs fail and that is tried one job at a time, summed over children",
                self._sum("queues_slowed"),
            ),
            ("answers_lost", "Runs whose lease was lost before they answered", sum(r.lost for r in slots)),
            *((name, words, sum(getattr(r, name) for r in slots)) for name, words in _LOCKS.items()),
            ("leases_reaped", "Lapsed leases ended by this worker", self._scoreboard.header.reaped),
            ("database_down", "1 while the database is unreachable", self._scoreboard.header.database_down),
        ]

    def _sum(self, field: str) -> int:
        return sum(getattr(r, field) for r in self._scoreboard.slots if r.state == State.RUNNING)


def _handler(answer: Callable[[str], tuple[int, str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            status, text = answer(self.path.split("?")[0])
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes come every few seconds; they are not worth a line each."""

    return Handler
