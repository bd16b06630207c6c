"""(i) Publishing 100 events per commit and delivering them, compared with the least SQL for that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.bench import Bench, alternate
from benchmarks.fill import empty
from benchmarks.measures.enqueue import compared
from benchmarks.reference_outbox import ReferenceOutbox, create_table

BATCH = 100
TOPIC = "bench"
#: number of different keys; None = events without a key
KEYS: dict[str, int | None] = {"no key": None, "200 keys": 200, "a key each": 10**9}


def run(bench: Bench) -> dict[str, Any]:
    """Events a second, and ours / reference."""
    from jobqueue.outbox import subscriber

    subscriber(TOPIC)(ignore)
    create_table(bench.target)
    reference = ReferenceOutbox(bench.target)
    events = bench.plan.outbox_events
    publishers: dict[str, Callable[[], float]] = {"raw INSERT": partial(publish_raw, bench, reference, events)}
    relays: dict[str, Callable[[], float]] = {"raw claim, UPDATE": partial(relay_raw, bench, reference, events)}
    for name, keys in KEYS.items():
        publishers[f"publish(), {name}"] = partial(publish_ours, bench, events, keys)
        relays[f"relay, {name}"] = partial(relay_ours, bench, events, keys)
    record = {
        "publish": compared(alternate(publishers, bench.plan.rounds)),
        "deliver": compared(alternate(relays, bench.plan.rounds), "raw claim, UPDATE"),
    }
    reference.connection.close()
    return record


def ignore(event: Any) -> None:
    """A subscriber that does nothing."""


def publish_raw(bench: Bench, reference: ReferenceOutbox, events: int) -> float:
    """Events a second."""
    reference.empty()
    begun = time.perf_counter()
    for start in range(0, events, BATCH):
        reference.publish([json.dumps({"n": n}) for n in range(start, start + BATCH)], TOPIC)
    return events / (time.perf_counter() - begun)


def publish_ours(bench: Bench, events: int, keys: int | None) -> float:
    """Events a second."""
    from django.db import transaction

    from jobqueue.outbox import publish

    for table in ("job_outbox", "job_key"):
        empty(bench.target, bench.connection, table)
    begun = time.perf_counter()
    for start in range(0, events, BATCH):
        with transaction.atomic():
            for n in range(start, start + BATCH):
                publish(TOPIC, {"n": n}, None if keys is None else f"{n % keys:08}")
    return events / (time.perf_counter() - begun)


def relay_raw(bench: Bench, reference: ReferenceOutbox, events: int) -> float:
    """Events a second."""
    publish_raw(bench, reference, events)
    begun = time.perf_counter()
    while reference.relay(BATCH):
        pass
    return events / (time.perf_counter() - begun)


def relay_ours(bench: Bench, events: int, keys: int | None) -> float:
    """Events a second of one relay."""
    from jobqueue.outbox import Relay

    publish_ours(bench, events, keys)
    relay = Relay("default", batch_size=BATCH)
    begun = time.perf_counter()
    while relay.counts["delivered"] < events:
        relay.run_once()
    seconds = time.perf_counter() - begun
    relay.close()
    return events / seconds
