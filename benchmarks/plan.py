"""The sizes and times of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

MEASURES = (
    *("enqueue", "drain", "latency", "growth", "snapshot", "resources", "idle", "scaling"),
    *("locks", "outbox", "keys"),
)
DATABASES = ("mysql", "mariadb", "postgres", "sqlite")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and times of one run. The defaults are the full run."""

    rounds: int = 5
    drain_jobs: int = 40_000
    each_jobs: int = 8_000  # one committed ack per job
    drain_seconds: float = 6.0  # a slower contestant is stopped here
    delayed_jobs: int = 100_000
    worker_counts: tuple[int, ...] = (1, 2)
    enqueue_single: int = 500  # per contestant and round
    enqueue_bulk: int = 5  # statements of 1,000
    latency_seconds: float = 15.0
    latency_rounds: int = 2
    growth_ready: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    growth_finished: int = 5_000_000  # beside the largest of growth_ready
    growth_claims: int = 20  # of 100 jobs, per table and contestant
    snapshot_jobs: int = 100_000
    memory_jobs: int = 1_000_000
    idle_before_seconds: float = 60.0  # start-up, and polls that become fewer
    idle_seconds: float = 60.0
    idle_rounds: int = 2
    scaling: tuple[int, ...] = (1, 2, 4, 8)
    scaling_jobs: int = 40_000
    peer_jobs: int = 20_000
    outbox_events: int = 20_000  # per contestant and round
    key_jobs: int = 10_000  # with ordering keys, per contestant and round
    key_seconds: float = 10.0  # a slower contestant is stopped here
    lock_seconds: float = 2.0  # per contestant and round
    lock_processes: tuple[int, ...] = (1, 4)
    only: tuple[str, ...] = MEASURES
    peers: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the record, and for the process that measures one database."""
        return asdict(self)


def from_json(found: dict[str, Any]) -> Plan:
    """The Plan that as_json() described."""
    return Plan(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


FULL = Plan()
QUICK = replace(
    FULL,
    rounds=3,
    drain_jobs=15_000,
    each_jobs=4_000,
    drain_seconds=4.0,
    enqueue_single=300,
    enqueue_bulk=3,
    latency_seconds=6.0,
    latency_rounds=1,
    growth_ready=(10_000, 100_000, 200_000),
    growth_finished=200_000,
    snapshot_jobs=30_000,
    memory_jobs=50_000,
    idle_before_seconds=20.0,
    idle_seconds=20.0,
    scaling_jobs=15_000,
    peer_jobs=8_000,
    outbox_events=5_000,
    key_jobs=5_000,
    key_seconds=5.0,
    lock_seconds=1.0,
)
# Only checks that everything works; its figures mean nothing.
TINY = replace(
    QUICK,
    rounds=1,
    drain_jobs=300,
    each_jobs=100,
    drain_seconds=5.0,
    delayed_jobs=500,
    worker_counts=(1,),
    enqueue_single=20,
    enqueue_bulk=1,
    latency_seconds=1.0,
    growth_ready=(1_000, 2_000),
    growth_finished=2_000,
    growth_claims=3,
    snapshot_jobs=2_000,
    memory_jobs=1_000,
    idle_before_seconds=3.0,
    idle_seconds=1.0,
    idle_rounds=1,
    scaling=(1, 2),
    scaling_jobs=300,
    peer_jobs=50,
    outbox_events=200,
    key_jobs=200,
    lock_seconds=0.2,
    lock_processes=(2,),
)
SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}
