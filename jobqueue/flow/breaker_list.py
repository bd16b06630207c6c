"""All circuit breakers, for the admin."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobqueue.conf import load
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.gates import declared
from jobqueue.gates.breaker_states import is_over
from jobqueue.models import BreakerState


@dataclass(frozen=True, slots=True)
class BreakerFacts:
    """The circuit breaker of a dependency. Instants are aware."""

    dependency: str
    state: str  # "closed", "open" or "half-open"
    reason: str
    since: datetime | None
    by_hand: bool
    until: datetime | None  # of one that was opened by hand; None: until it is closed
    probe_at: datetime | None  # when the next probe may start
    failures: int  # of a closed one, in its present window


def breaker_facts(*, using: str, name: str | None = None) -> list[BreakerFacts]:
    """All breakers by name, those that are not closed first; or the one of `name`.

    Of the table, of DEPENDENCIES in the settings, and of the tasks that this process has imported.
    """
    rows = BreakerState.objects.using(using).annotate(now=Selected(UtcNow()))
    with explain_missing_table(using):
        found = list(rows if name is None else rows.filter(pk=name))
    known = {row.dependency: _facts(row, row.now) for row in found}
    names = {*known, *load().dependencies, *declared.dependencies()} if name is None else {name}
    everything = [known.get(one) or _closed(one) for one in names]
    return sorted(everything, key=lambda one: (one.state == "closed", one.dependency))


def _closed(dependency: str) -> BreakerFacts:
    return BreakerFacts(dependency, "closed", "", None, False, None, None, 0)


def _facts(row: BreakerState, now: datetime) -> BreakerFacts:
    if is_over(row, now):
        return _closed(row.dependency)
    closed = row.state == BreakerState.State.CLOSED
    return BreakerFacts(
        row.dependency,
        str(row.state),
        "" if closed else row.reason,
        row.since,
        row.by_hand,
        row.until,
        row.probe_at,
        row.failures,
    )
