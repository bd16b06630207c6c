"""Opens the gate of the job whose turn it is among those of its ordering key.

The next job of a lane is opened after the commit that ended the one before it, and the first one after the commit that
added it, in a separate transaction. So no settling statement waits for a lane, and no lane for a business transaction.
If the process dies between the two commits, the key stalls until sweep(); it can never run two jobs at once. ADR 0013.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from django.db import Error, connections, transaction
from django.db.models import BigIntegerField, Case, F, Model, Value, When

from jobqueue import wakeup
from jobqueue.backoff import Backoff
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import AnyOf, Keys
from jobqueue.db.prepared import Prepared, prepare_change, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job, LaneEntry
from jobqueue.models.job import FREE_KEY, JobQuerySet
from jobqueue.models.rows import any_in_state
from jobqueue.ordering import HALTED, KEY_GATE, SCHEDULED, lanes
from jobqueue.ordering.lanes import EntryState, LaneCursors, lane_of

logger = logging.getLogger("jobqueue.transitions")

# A lane usually has an ended head and the next job. Where thousands of jobs were canceled, more are read at once.
_DEPTH, _DEPTH_MAX = 3, 1000
_LANES = 500
# For lanes in which others hold locks: 10 to 20 ms apart, 0.3 to 0.6 s in all. Then the others, or the sweep, promote.
_TRIES, _PAUSE = 30, Backoff(base_seconds=0.015, factor=1.0, cap_seconds=0.02, jitter=1 / 3)
_cursors = LaneCursors()


@dataclass(slots=True)
class _Step:
    """What has to be done in one lane."""

    head: EntryState
    ended: list[int] = field(default_factory=list)  # ids of entries whose jobs have ended
    opened: EntryState | None = None
    halted: EntryState | None = None
    more: bool = False  # everything that was read has ended, and there may be more entries
    _halts: bool = False

    def add(self, entry: EntryState) -> bool:
        """Take the next entry into account; whether its job has ended, so that the one after it is needed."""
        self._halts = self._halts or entry.halted
        policy = load().queue_on_key_failure(entry.queue or "") if entry.status == Job.Status.FAILED else ""
        if policy == "skip" or entry.status in (None, *FREE_KEY):
            self.ended.append(entry.id)
            return True
        if (self._halts or policy == "halt") and not entry.halted:
            self.halted = entry
        elif not self._halts and entry.status == Job.Status.READY and entry.gate == KEY_GATE:
            self.opened = entry
        return False


def promote_next(keys: Iterable[tuple[str, bytes | None]], *, using: str) -> None:
    """Open the job whose turn it is for each (queue, ordering key) whose jobs are new or have changed.

    Now, or when the open transaction is committed. Free of cost for jobs without a key (None). Never raises.
    """
    found = {lane_of(queue, key) for queue, key in keys if key is not None}
    if not found:
        return
    if not in_open_transaction(using):
        _promote_or_log(found, using)
    elif connections[using].in_atomic_block:
        _pending(using).update(found)

        def promote_pending() -> None:
            _promote_pending(using)

        # A function, not a partial: Django names a robust hook that raises by its __qualname__.
        transaction.on_commit(promote_pending, using=using, robust=True)
    # Else autocommit was turned off by hand, and Django does not see the commit: the sweep will find them.


def _pending(using: str) -> set[int]:
    """Lanes to promote after this connection's next commit. Those left by a rollback do no harm."""
    found: set[int] = connections[using].__dict__.setdefault("jobqueue_lanes", set())
    return found


def _promote_pending(using: str) -> None:
    # Registered by every enqueue of a transaction; the first call does the work of all.
    found = set(_pending(using))
    _pending(using).clear()
    if found:
        _promote_or_log(found, using)


def promote(wanted: Collection[int], *, using: str, cursors: LaneCursors | None = None) -> int:
    """Remove ended heads from these lanes and open the next jobs; how many jobs were opened.

    Idempotent. `cursors`: seek the heads from where they were seen a moment ago. Raises DatabaseBusy after repeated
    deadlocks.
    """
    lanes_in_order, cursors = sorted(wanted), cursors or LaneCursors()
    starts = range(0, len(lanes_in_order), _LANES)
    return sum(_promote(set(lanes_in_order[start : start + _LANES]), using, cursors) for start in starts)


def _promote(left: set[int], using: str, cursors: LaneCursors) -> int:
    opened = vain = 0
    while left and vain < _TRIES:
        # Without a lock: if a lane's head is open, the verb that ends it will promote again.
        steps = retry_transient("promote", partial(_steps, left, using, cursors), using=using)
        if not steps:
            break
        tried: list[_Step] = []
        done = retry_transient("promote", partial(_apply, steps, using, cursors, tried), using=using)
        # A try before the last one may have been committed, and its wake-ups were not sent.
        found = {step.opened.job_id: step.opened.queue or "" for step in tried if step.opened}
        for queue in set(found.values()):
            wakeup.notify(queue, using)
        opened += len(found)
        # Also lanes that others have promoted meanwhile: they need nothing any more, or have another head.
        left = steps.keys() - {step.head.lane for step in done if not step.more}
        vain = 0 if done else vain + 1
        if vain:
            time.sleep(_PAUSE.delay_seconds(vain))
    return opened


def sweep(after: int, *, using: str, limit: int = 1000) -> tuple[int, int | None]:
    """promote() for up to `limit` lanes above `after`, some of which a crash or foreign SQL may have stalled.

    Returns how many jobs it opened, and the last lane it saw: None when there are no more.
    """
    found = retry_transient("promote", partial(lanes.active, after, using=using, limit=limit), using=using)
    opened = promote(found, using=using) if found else 0
    return opened, found[-1] if len(found) == limit else None


def _promote_or_log(wanted: Collection[int], using: str) -> None:
    try:
        promote(wanted, using=using, cursors=_cursors)
    except (Error, DatabaseBusy) as error:
        logger.warning("%d ordering keys wait for the next sweep: %s", len(wanted), error)


def _steps(wanted: Iterable[int], using: str, cursors: LaneCursors) -> dict[int, _Step]:
    """The lanes in which something has to be done."""
    met = lanes.next_entries(cursors.of(wanted, using=using), using=using)
    cursors.keep(met, using=using)
    steps = {lane: _Step(entry) for lane, entry in met.items()}
    for _ in range(_DEPTH):
        ended = {lane: entry.id for lane, entry in met.items() if steps[lane].add(entry)}
        met = lanes.next_entries(ended, using=using)
        if not met:
            break
    for lane in met:
        steps[lane] = _Step(steps[lane].head)
        entries = lanes.front(lane, using=using, depth=_DEPTH_MAX)
        steps[lane].more = all(map(steps[lane].add, entries))
    return {lane: step for lane, step in steps.items() if step.ended or step.opened or step.halted}


def _apply(seen: Mapping[int, _Step], using: str, cursors: LaneCursors, tried: list[_Step]) -> list[_Step]:
    """Take steps in one transaction, in lanes where no other session has locks; returns them and adds them to `tried`.

    Another promote() ends in a moment, and this one tries again. Any other session with a lock there, such as an
    operator's verb in an open transaction, promotes the lane after its commit.
    """
    wanted: set[int] = set()
    for step in seen.values():
        if len(wanted) < _DEPTH_MAX:
            wanted |= {step.head.id, *step.ended}
    with vendor(using).transaction(connections[using]):
        mine = _lock(LaneEntry, wanted, using)
        # Read again: what was seen before the lock may have changed.
        now = [step for step in _steps(seen, using, cursors).values() if {step.head.id, *step.ended} <= mine]
        opening = {step.opened.job_id for step in now if step.opened}
        free = _lock(Job, opening, using) if opening else set()
        steps = [step for step in now if step.opened is None or step.opened.job_id in free]
        _write(steps, using)
        tried += steps
        return steps


def _lock(model: type[Model], ids: Iterable[int], using: str) -> set[int]:
    """The ids of those rows that could be locked without waiting."""
    return {key for (key,) in _locking(model, using).rows(ids=sorted(ids))}


@cache
def _locking(model: type[Model], using: str) -> Prepared:
    # By their keys alone: a scan would read, and wait for, rows of others.
    rows = model._base_manager.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField()))).order_by("pk")
    return prepare_rows(vendor(using).lock_rows(vendor(using).force_index(rows, "PRIMARY")).values_list("pk"))


def _write(steps: Collection[_Step], using: str) -> None:
    entries = LaneEntry.objects.using(using)
    if ended := [entry_id for step in steps for entry_id in step.ended]:
        vendor(using).delete_by_key(entries, sorted(ended))
    if halted := [step.halted for step in steps if step.halted]:
        entries.filter(pk__in=sorted(entry.id for entry in halted)).update(halted=True)
        _closing(using).change(ids=sorted(entry.job_id for entry in halted))
    if opened := sorted(step.opened.job_id for step in steps if step.opened):
        _opening(using).change(ids=opened)


@cache
def _opening(using: str) -> Prepared:
    reason = Case(When(run_at__gt=UtcNow(), then=Value(SCHEDULED)), output_field=Job._meta.get_field("wait_reason"))
    return prepare_change(_behind_the_gate(using), {"gate": 0, "wait_reason": reason, "updated_at": UtcNow()})


@cache
def _closing(using: str) -> Prepared:
    return prepare_change(_behind_the_gate(using), {"wait_reason": HALTED, "updated_at": UtcNow()})


def _behind_the_gate(using: str) -> JobQuerySet:
    # READY still, too: not every database kept these rows locked since they were read.
    return any_in_state(Job.Status.READY, using=using).filter(gate=KEY_GATE)
