"""Deadlocks that this process met, kept as stories where the server keeps none."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jobqueue.db import fault_vendor
from jobqueue.db.lock_facts import Deadlock
from jobqueue.lockstats import recorder as metrics
from jobqueue.lockstats.tables import Finding
from jobqueue.models import LockFinding


def on_retried(sender: type, *, using: str, error: BaseException | None = None, **_: Any) -> None:
    """Receiver of transaction_retried."""
    story = None if error is None else fault_vendor(using).monitor.met(error)
    if story is not None:
        metrics.found(story_finding(story))


def story_finding(story: Deadlock) -> Finding:
    """What to keep of it."""
    return Finding(LockFinding.Kind.DEADLOCK, story.identity, asdict(story))
