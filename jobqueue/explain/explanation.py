"""What explain_job() and explain_queue() return, and how it puts instants, durations, rates and lists into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from jobqueue.durations import format_seconds
from jobqueue.payload import JSON

#: what `code` may be, in the order of docs/reference/explain.md
CODES = (
    "paused", "draining", "held", "expired", "key", "parents", "unknown_task", "not_due", "breaker", "slot", "rate",
    "no_worker", "database_slow", "host_exhausted", "connection", "outside_service", "hanging", "workers_busy",
    "monitor_dead", "row_lock", "read_only", "running", "quarantined", "ended", "clock_skew",
)  # fmt: skip
#: jobs that a text and the evidence name
JOBS_SHOWN = 10
_UNITS = (("s", 1), ("m", 60), ("h", 3600), ("d", 86_400))


@dataclass(frozen=True, slots=True)
class Explanation:
    """One reason. `code` is one of CODES; `text` and `next_step` are in the active language.

    `evidence` is JSON: what was read, with instants as ISO 8601 in UTC and durations in seconds.
    """

    code: str
    text: str
    evidence: dict[str, JSON]
    next_step: str


def iso(instant: datetime | None) -> str | None:
    """An instant as evidence has it."""
    return None if instant is None else instant.isoformat()


def seconds_until(instant: datetime, now: datetime) -> float:
    """Seconds from `now` to `instant`; 0 if it has passed."""
    return max(0.0, (instant - now).total_seconds())


def span(seconds: float) -> str:
    """A duration without its sign as short text; tenths of seconds only below ten seconds."""
    size = abs(seconds)
    return format_seconds(size if size < 10 else float(round(size)))


def rate_text(per_second: float) -> str:
    """A rate as set_limit() takes it, in the smallest unit in which it is 1 or more: 10/s, 5/h."""
    unit, seconds = next((one for one in _UNITS if per_second * one[1] >= 1), _UNITS[-1])
    return f"{per_second * seconds:.6g}/{unit}"


def id_list(ids: Sequence[int]) -> str:
    """The first JOBS_SHOWN of some job ids as text."""
    return ", ".join(map(str, ids[:JOBS_SHOWN])) + (", ..." if len(ids) > JOBS_SHOWN else "") or "-"
