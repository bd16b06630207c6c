"""Opening the gate of the job whose turn it is among those of its ordering key.

A lane's next job is opened after the commit that ended the one before, and the first after the commit that added it, by
a transaction of its own: no settling statement waits for a lane, no lane for a business transaction. Whoever dies
between the two leaves the lane standing still until sweep() finds it, never going too fast. ADR 0013.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from django.db import Error, connections, transaction
from django.db.models import BigIntegerField, Case, F, Model, Value, When

from jobqueue import wakeup
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import AnyOf, Keys
from jobqueue.db.prepared import Prepared, prepare_change, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job, LaneEntry
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import any_in_state
from jobqueue.ordering import lanes
from jobqueue.ordering.cursor import LaneCursors
from jobqueue.ordering.gate import HALTED, KEY_GATE, SCHEDULED
from jobqueue.ordering.lanes import Place, lane_of

logger = logging.getLogger("jobqueue.transitions")

# The usual lane has an ended head and the next one; where jobs were canceled by the thousand, more are read at once.
_DEPTH, _DEPTH_MAX = 3, 1000
_LANES = 500
# For lanes in which others have locks now: 0.3 to 0.6 s in all, then they, or the sweep, see to it.
_TRIES, _TRY_SECONDS = 30, 0.02
_cursors = LaneCursors()


@dataclass(slots=True)
class _Step:
    """What one lane needs now."""

    head: Place
    ended: list[int] = field(default_factory=list)  # places whose jobs have ended
    opened: Place | None = None
    halted: Place | None = None
    more: bool = False  # everything that was read has ended: there may be others behind
    _halts: bool = False

    def meet(self, place: Place) -> bool:
        """Take in the next place from the head on; whether its job has ended, so that another is to come."""
        self._halts = self._halts or place.halted
        policy = load().queue_on_key_failure(place.queue or "") if place.status == Job.Status.FAILED else ""
        if policy == "skip" or place.status in (None, Job.Status.DONE, Job.Status.CANCELED):
            self.ended.append(place.id)
            return True
        if (self._halts or policy == "halt") and not place.halted:
            self.halted = place
        elif not self._halts and place.status == Job.Status.READY and place.gate == KEY_GATE:
            self.opened = place
        return False


def promote_next(keys: Iterable[tuple[str, bytes | None]], *, using: str) -> None:
    """Jobs of these (queue, ordering key) are new, or something happened to them: open those whose turn it is.

    Now, or when the open transaction is committed. Costs next to nothing for jobs without a key (None). Never raises.
    """
    found = {lane_of(queue, key) for queue, key in keys if key is not None}
    if not found:
        return
    if not in_open_transaction(using):
        _advance_or_leave(found, using)
    elif connections[using].in_atomic_block:
        _pending(using).update(found)
        transaction.on_commit(partial(_advance_pending, using), using=using, robust=True)
    # Else autocommit was turned off by hand, and nobody hears of the commit: the sweep will find them.


def _pending(using: str) -> set[int]:
    """Lanes to look at after this connection's next commit; those of a rollback that stay in it do no harm."""
    found: set[int] = connections[using].__dict__.setdefault("jobqueue_lanes", set())
    return found


def _advance_pending(using: str) -> None:
    # Every enqueue of a transaction has registered this: the first call does the work of all.
    found = set(_pending(using))
    _pending(using).clear()
    if found:
        _advance_or_leave(found, using)


def promote(wanted: Collection[int], *, using: str, cursors: LaneCursors | None = None) -> int:
    """Remove ended heads from these lanes and open the next ones; how many jobs were opened.

    Repeatable: whoever looks finds the same head. With `cursors` it is sought from where it was seen a moment ago.
    Raises DatabaseBusy after repeated deadlocks.
    """
    lanes_in_order, cursors = sorted(wanted), cursors or LaneCursors()
    starts = range(0, len(lanes_in_order), _LANES)
    return sum(_advance(set(lanes_in_order[start : start + _LANES]), using, cursors) for start in starts)


def _advance(left: set[int], using: str, cursors: LaneCursors) -> int:
    opened = vain = 0
    while left and vain < _TRIES:
        # Without a lock: if a lane's head is open, whoever ends it will look again, and see what we see.
        steps = retry_transient(partial(_steps, left, using, cursors), using=using)
        if not steps:
            break
        tried: list[_Step] = []
        done = retry_transient(partial(_apply, steps, using, cursors, tried), using=using)
        # A try before the last one may have been committed, and its wake-ups were not sent.
        found = {step.opened.job_id: step.opened.queue or "" for step in tried if step.opened}
        for queue in set(found.values()):
            wakeup.notify(queue, using)
        opened += len(found)
        # Those that others have brought on meanwhile, too: they need nothing any more, or there is another head.
        left = steps.keys() - {step.head.lane for step in done if not step.more}
        vain = 0 if done else vain + 1
        if vain:
            time.sleep(random.uniform(0.5, 1.0) * _TRY_SECONDS)
    return opened


def sweep(after: int, *, using: str, limit: int = 1000) -> tuple[int, int | None]:
    """promote() for up to `limit` lanes above `after`: a crash or foreign SQL may have left some standing still.

    How many jobs it opened, and the last lane it saw, None when there are no more.
    """
    found = retry_transient(partial(lanes.active, after, using=using, limit=limit), using=using)
    opened = promote(found, using=using) if found else 0
    return opened, found[-1] if len(found) == limit else None


def _advance_or_leave(wanted: Collection[int], using: str) -> None:
    try:
        promote(wanted, using=using, cursors=_cursors)
    except (Error, DatabaseBusy) as error:
        logger.warning("%d ordering keys wait for the next sweep: %s", len(wanted), error)


def _steps(wanted: Iterable[int], using: str, cursors: LaneCursors) -> dict[int, _Step]:
    """The lanes that need something."""
    met = lanes.next_places(cursors.of(wanted, using=using), using=using)
    cursors.keep(met, using=using)
    steps = {lane: _Step(place) for lane, place in met.items()}
    for _ in range(_DEPTH):
        ended = {lane: place.id for lane, place in met.items() if steps[lane].meet(place)}
        met = lanes.next_places(ended, using=using)
        if not met:
            break
    for lane in met:
        steps[lane] = _Step(steps[lane].head)
        places = lanes.front(lane, using=using, depth=_DEPTH_MAX)
        steps[lane].more = all(map(steps[lane].meet, places))
    return {lane: step for lane, step in steps.items() if step.ended or step.opened or step.halted}


def _apply(seen: Mapping[int, _Step], using: str, cursors: LaneCursors, tried: list[_Step]) -> list[_Step]:
    """One transaction; the steps that were taken: those of lanes that nobody else has a lock in. `tried` gets them too.

    Another promote() is done in a moment, and this one tries again. Whoever else has a lock there, for any time (an
    operator's verb in a transaction of its own), will look at the lane after its commit.
    """
    wanted: set[int] = set()
    for step in seen.values():
        if len(wanted) < _DEPTH_MAX:
            wanted |= {step.head.id, *step.ended}
    with vendor(using).transaction(connections[using]):
        mine = _lock(LaneEntry, wanted, using)
        # Read again: what was seen before the lock may be over.
        now = [step for step in _steps(seen, using, cursors).values() if {step.head.id, *step.ended} <= mine]
        opening = {step.opened.job_id for step in now if step.opened}
        free = _lock(Job, opening, using) if opening else set()
        steps = [step for step in now if step.opened is None or step.opened.job_id in free]
        _write(steps, using)
        tried += steps
        return steps


def _lock(model: type[Model], ids: Iterable[int], using: str) -> set[int]:
    """Those rows that could be locked at once."""
    return {key for (key,) in _locking(model, using).rows(ids=sorted(ids))}


@cache
def _locking(model: type[Model], using: str) -> Prepared:
    # By their keys alone: a scan would meet, and wait for, rows of others.
    rows = model._base_manager.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField()))).order_by("pk")
    return prepare_rows(vendor(using).lock_rows(vendor(using).force_index(rows, "PRIMARY")).values_list("pk"))


def _write(steps: Collection[_Step], using: str) -> None:
    places = LaneEntry.objects.using(using)
    if ended := [place_id for step in steps for place_id in step.ended]:
        vendor(using).delete_by_key(places, sorted(ended))
    if halted := [step.halted for step in steps if step.halted]:
        places.filter(pk__in=sorted(place.id for place in halted)).update(halted=True)
        _closing(using).change(ids=sorted(place.job_id for place in halted))
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
