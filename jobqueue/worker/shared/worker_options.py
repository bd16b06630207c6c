"""The options of a runworker command."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from os import getpid

from jobqueue.worker.shared.queue_choice import Selection

#: connections of the monitor to the queue's database: renewals, recovery, housekeeping, gates, schedules, and wake-ups
MONITOR_CONNECTIONS = 6
#: connections of each child beside those of its jobs: one claims, two settle, one each for coroutines and lock counters
PER_CHILD = 5
#: connections of each child that relays events: the relay, and the renewal of leases beside a slow delivery
PER_RELAY = 2
LIVE_SECONDS_MIN = 60.0  # an orchestrator restarts a worker that is not live, and its jobs with it
SILENT_SECONDS_MIN = 2.0  # with very short leases, on a busy machine, a monitor may be slow without hanging


def default_name() -> str:
    """host:pid of this process, printable and short enough to be stored."""
    host = "".join(c if c.isprintable() and c.isascii() else "?" for c in socket.gethostname())
    return f"{host[:60] or 'localhost'}:{getpid()}"


@dataclass(frozen=True, slots=True)
class Options:
    """Times are in seconds; None: no limit."""

    selection: Selection
    database: str
    concurrency: int = 4
    async_concurrency: int = 100
    processes: int = 1
    name: str = field(default_factory=default_name)
    # Random at each start: a later worker of the same name must never be taken for this one.
    boot_id: str = field(default_factory=lambda: secrets.token_hex(4))
    lease_seconds: float = 60.0
    heartbeat_seconds: float = 15.0
    batch_size: int = 100
    poll_low_seconds: float = 0.05
    poll_high_seconds: float = 0.2
    once: bool = False
    drain: bool = False
    max_jobs: int | None = None
    max_seconds: float | None = None
    max_rss_bytes: int | None = None
    recycle_jobs: int | None = None
    recycle_seconds: float | None = None
    idle_exit_seconds: float | None = None
    shutdown_seconds: float = 30.0
    on_timeout: str = "release"
    reaper: bool = True
    scheduler: bool = True
    db_retry_seconds: float | None = None
    fail_on_error: bool = False
    adaptive: bool = True
    reload: bool = False
    probe_port: int | None = None
    relays: bool = False

    @property
    def connections_per_child(self) -> int:
        """The most connections of a child, without those of its job threads."""
        return PER_CHILD + (PER_RELAY if self.relays else 0)

    @property
    def connections_max(self) -> int:
        """The most connections that the worker opens to the queue's database."""
        return MONITOR_CONNECTIONS + self.processes * (self.connections_per_child + self.concurrency)

    @property
    def silent_seconds(self) -> float:
        """A monitor that is silent for this long is replaced: another one can still renew the leases in time."""
        return max(SILENT_SECONDS_MIN, self.lease_seconds / 2)

    @property
    def live_seconds(self) -> float:
        """A child with free threads that has not looked for jobs for this long does not come back by itself.

        Longer than a statement without an answer may take, which is half a lease.
        """
        return max(LIVE_SECONDS_MIN, self.lease_seconds)

    def child_name(self, index: int, generation: int) -> str:
        """The name that a child process writes to locked_by; no two processes have the same."""
        return f"{self.name}:{self.boot_id}/{index + 1}.{generation}"

    def quota(self, index: int) -> int | None:
        """How many jobs child `index` may start: its even share of max_jobs."""
        if self.once:
            return 1
        if self.max_jobs is None:
            return None
        share, rest = divmod(self.max_jobs, self.processes)
        return share + (1 if index < rest else 0)
