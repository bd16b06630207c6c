"""Health and metrics over HTTP, read from the scoreboard, so that they work while the database is unreachable.

The server shares a process with the renewal of leases, and anybody may connect to it.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any

from jobqueue.conf import load
from jobqueue.requested import REQUESTED_ENDS
from jobqueue.worker.shared.counters import redone_totals, retry_totals
from jobqueue.worker.shared.scoreboard import Hold, ProcessSlot, Scoreboard, State
from jobqueue.worker.shared.worker_options import LIVE_SECONDS_MIN

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger("jobqueue.worker")

# The monitor ticks five times a second. Without a tick for this long it hangs, and the supervisor has not replaced it.
STALE_SECONDS = 30.0
#: connections at once, and how long each may last: more would use up the files and threads of the process
CONNECTIONS_MAX = 16
REQUEST_SECONDS = 5.0

#: field of a ProcessSlot -> name and help of its counter
_COUNTERS = {
    "finished": ("jobs_ended", "Runs that ended"),
    "failed": ("jobs_failed", "Runs that failed"),
    "lost": ("answers_lost", "Runs whose lease was lost before they ended"),
    **{
        end.outcome.value: (f"jobs_{end.outcome}", f"Runs that ended with {end.error.__name__}")
        for end in REQUESTED_ENDS
    },
    "locks_acquired": ("locks_acquired", "Locks that jobs acquired, updated every ten seconds"),
    "locks_failed": ("locks_failed", "Locks that jobs did not get in time"),
    "locks_contended": ("locks_contended", "Locks that jobs got after a wait"),
    "locks_reentries": ("locks_reentered", "Jobs that took a lock again after its end"),
    "locks_wait_us": ("locks_wait_us", "Microseconds that jobs waited for locks"),
    "connections_opened": ("connections_opened", "Connections that children opened or took from a pool"),
    "connections_refused": ("connections_refused", "Connections that children did not get, because none was left"),
    "connection_wait_us": ("connection_wait_us", "Microseconds that children waited for connections"),
}


class Probe:
    """GET /live, /ready and /metrics.

    /live: 503 after 30 s without a tick of the monitor, and while a child with a free thread has not looked for jobs
    for `live_seconds` although the database answers. /ready: 503 while no child runs, while the database is
    unreachable, and after `silent_seconds` without a tick. /metrics: Prometheus text.
    """

    def __init__(
        self,
        scoreboard: Scoreboard,
        port: int,
        silent_seconds: float = STALE_SECONDS,
        live_seconds: float = LIVE_SECONDS_MIN,
    ) -> None:
        self._scoreboard, self._silent_seconds, self._live_seconds = scoreboard, silent_seconds, live_seconds
        server = ProbeServer(port, self._answer)
        threading.Thread(target=server.serve_forever, name="probe", daemon=True).start()
        logger.info("probes on port %d: /live /ready /metrics", server.server_address[1])

    @property
    def _silent(self) -> float:
        return time.monotonic() - self._scoreboard.header.monitor_ticked_at

    def _answer(self, path: str) -> tuple[int, str]:
        if path == "/live":
            return self._live()
        if path == "/ready":
            return self._ready()
        if path == "/metrics":
            return self._metrics()
        return 404, "known: /live /ready /metrics\n"

    def _live(self) -> tuple[int, str]:
        if (silent := self._silent) >= STALE_SECONDS:
            return 503, _no_tick(silent)
        for index, slot in enumerate(self._scoreboard.slots):
            if (seconds := self._unlooked_seconds(index)) > self._live_seconds:
                why = ": a signal has stopped it" if slot.paused else ""
                return 503, f"process {slot.pid} has not looked for jobs for {seconds:.0f} s{why}\n"
        return 200, "live\n"

    def _unlooked_seconds(self, index: int) -> float:
        """For how long a child should have looked for jobs and has not.

        Without a database nobody can look, and a new process could not either.
        """
        slot, header = self._scoreboard.slots[index], self._scoreboard.header
        if slot.state != State.RUNNING or not slot.looked_at or header.database_down:
            return 0.0
        running = sum(lease_slot.hold == Hold.RUNNING for lease_slot in self._scoreboard.lease_slots[index])
        if not slot.paused and not slot.room and running >= slot.level:
            # A job may hold the interpreter for long, so that the main thread does not run.
            return 0.0
        return time.monotonic() - max(slot.looked_at, header.answers_since)

    def _ready(self) -> tuple[int, str]:
        header = self._scoreboard.header
        if header.stop:
            return 503, "stopping\n"
        if header.database_down:
            return 503, "the database is unreachable\n"
        if (silent := self._silent) > self._silent_seconds:
            return 503, _no_tick(silent)
        running = len(self._running())
        return (
            (200, f"ready: {running} {'child' if running == 1 else 'children'}\n")
            if running
            else (503, "no child is running\n")
        )

    def _metrics(self) -> tuple[int, str]:
        try:
            from prometheus_client import CollectorRegistry, generate_latest
            from prometheus_client.registry import Collector
        except ImportError:
            return 501, "prometheus-client is not installed. Run: pip install prometheus-client\n"
        collector = type("Scoreboard", (Collector,), {"collect": lambda _: self.collect()})()
        registry = CollectorRegistry()
        registry.register(collector)
        return 200, generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """The metrics. Counters start with the worker and continue when a child is replaced."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, words, value in self._gauges():
            yield GaugeMetricFamily(f"jobqueue_worker_{name}", words, value)
        for field, (name, words) in _COUNTERS.items():
            total = sum(getattr(slot, field) for slot in self._scoreboard.slots)
            yield CounterMetricFamily(f"jobqueue_worker_{name}", words, total)
        header = self._scoreboard.header
        yield CounterMetricFamily("jobqueue_worker_leases_reaped", "Lapsed leases ended by this worker", header.reaped)
        words = "How often the database became unreachable"
        yield CounterMetricFamily("jobqueue_worker_database_outages", words, header.database_outages)
        yield from self._redone()
        yield from self._retries()

    def _retries(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ("dependency", "task")
        counters = {
            "first_runs": "Runs that are first attempts, of tasks that have failed or have a dependency",
            "retries": "Runs that are retries, of the same tasks",
            "calls": "Runs, with the retries that libraries have made inside them",
            "held": "How often a retry waited longer than its back-off, because too many runs would be retries",
            "held_seconds": "How long they waited longer, in seconds",
        }
        found = retry_totals(self._scoreboard.retries)
        for field, words in counters.items():
            counter = CounterMetricFamily(f"jobqueue_worker_retry_{field}", words, None, labels)
            for total in found:
                counter.add_metric((total.dependency, total.task), getattr(total, field))
            yield counter
        words = "Calls for each job: attempts x retries inside an attempt"
        gauge = GaugeMetricFamily("jobqueue_worker_retry_amplification", words, None, labels)
        for total in found:
            gauge.add_metric((total.dependency, total.task), total.amplification)
        yield gauge

    def _redone(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        name, labels = "jobqueue_worker_transactions", ("verb", "error")
        redone = CounterMetricFamily(
            f"{name}_redone", "Transactions that an error ended and that ran again", None, labels
        )
        given_up = CounterMetricFamily(f"{name}_given_up", "Transactions that an error ended for good", None, labels)
        for total in redone_totals(self._scoreboard.redone):
            redone.add_metric((total.verb, total.kind), total.redone)
            given_up.add_metric((total.verb, total.kind), total.given_up)
        yield redone
        yield given_up

    def _gauges(self) -> list[tuple[str, str, int]]:
        running = self._running()
        holds = [lease_slot.hold for lease_slots in self._scoreboard.lease_slots for lease_slot in lease_slots]
        allowed = "Jobs that may run at once now, fewer than usual while the database is in trouble"
        breakers = "Circuit breakers that are not closed"
        gauges = [
            ("children", "Child processes that run", len(running)),
            ("jobs_running", "Jobs whose body runs now", holds.count(Hold.RUNNING)),
            ("jobs_claimed", "Jobs claimed and not started", holds.count(Hold.WAITING)),
            ("jobs_allowed", allowed, sum(slot.level for slot in running)),
            ("breakers_open", breakers, max((slot.breakers_open for slot in running), default=0)),
            ("database_down", "1 while the database is unreachable", self._scoreboard.header.database_down),
        ]
        if load().outbox is not None:
            waiting = "Events of the outbox that wait for a route or a subscriber, counted once a minute"
            gauges.append(("outbox_unrouted", waiting, self._scoreboard.header.outbox_unrouted))
        return gauges

    def _running(self) -> list[ProcessSlot]:
        return [slot for slot in self._scoreboard.slots if slot.state == State.RUNNING]


def _no_tick(seconds: float) -> str:
    return f"the monitor has been silent for {seconds:.0f} s\n"


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
