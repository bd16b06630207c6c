"""Repairs what a crash between two commits has left of gates: no job waits for ever, and no row stays for nothing.

Each pass looks at a slice of each table and the next one goes on there, so its cost does not grow with them.

It also writes into gates the limits that are in effect. A row keeps those that the last claim there went by: that claim
may not have known yet what an operator had set, its code may have been replaced since, or it was for a job of another
task with the same key.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from django.db import connections
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Value
from django.db.models.functions import NullIf

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.gates.backlog import INDEX, Level, ranks
from jobqueue.gates.buckets import mend
from jobqueue.gates.kinds import UNCLAIMED_SECONDS
from jobqueue.gates.limits import Announcing, LimitedGate, limits_in_effect
from jobqueue.gates.locking import read_all, update_unlocked
from jobqueue.gates.rules import rules
from jobqueue.gates.slots import Slot
from jobqueue.gates.timing import open_due
from jobqueue.gates.waiting import FLOW_GATE, open_first, open_free, open_jobs, subjects_waiting
from jobqueue.models import Gate, GateSlot, GateWait, Job
from jobqueue.models.job import JobQuerySet
from jobqueue.retention.windows import Place, behind
from jobqueue.transitions.claiming.candidates import queue_names

#: a job that a crash has left behind a gate starts so much later at most
INTERVAL_SECONDS = 30.0
#: rows of one statement, and of one pass
BATCH, SLICE = 1000, 10_000
#: slots that one statement deletes: each is a condition of it
SLOTS = 200
#: gates that nobody has used for so long are deleted: the next use makes a new one
IDLE_SECONDS = 86_400.0
#: how far ahead a time may lie without a look; besides the time of one token, where tokens are waited for
AHEAD_SECONDS, PACED_SECONDS = 60.0, 2 * UNCLAIMED_SECONDS
_TOKEN_SECONDS = Value(1.0) / NullIf(F("per_second"), Value(0.0))
#: gates whose time may come from a clock that was ahead and was set back
_TOO_LATE = Q(per_second=None, opens_at__gt=UtcNowPlus(AHEAD_SECONDS)) | Q(
    per_second__gt=0, opens_at__gt=UtcNowPlus(Value(PACED_SECONDS) + _TOKEN_SECONDS)
)


#: the workers that run on a database, with the limits that their code has
Workers = Callable[[str], Sequence[Announcing]]
#: the limits of a gate: `most` and per_second
_Limits = tuple[int | None, float | None]
_T = TypeVar("_T")


def no_workers(using: str) -> Sequence[Announcing]:
    """None: gates keep what they have, but for what operators have set."""
    return ()


class GateSweep:
    """Sweeps every INTERVAL_SECONDS; called more often. Two sweeps at the same time do no harm.

    A walk through the subjects for which jobs wait goes on with the next call: a job that a crash has left is not to
    wait for another one. What the others find can wait, and each of them goes on in its next turn.
    """

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS, *, workers: Workers = no_workers) -> None:
        self._interval_seconds, self._next, self._workers = interval_seconds, 0.0, workers
        self._last_wait, self._last_slot, self._last_subject = 0, (-1, -1), -1
        self._last_lost: tuple[Level, Place | None] | None = None

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Sweep if it is due: a few index seeks where no job waits behind a gate.

        Counts `gates_jobs_opened`, and as `gates_rows_deleted` the rows of jobs that no longer wait, of leases that
        have ended, and of gates that nobody uses.
        """
        if self._last_subject >= 0:
            return _counts(0, self._open_free(using))
        if time.monotonic() < self._next:
            return Counter()
        self._next = time.monotonic() + self._interval_seconds
        deleted = self._delete_waits(using) + self._delete_slots(using)
        deleted += retry_transient("promote", partial(_delete_gates, using), using=using)
        return _counts(deleted, self._open_lost(using) + self._open_free(using))

    def sweep_all(self, settings: Settings, *, using: str, seconds: float = math.inf) -> Counter[str]:
        """Open what is due, and sweep the tables as a whole, for about `seconds`.

        For a command that looks now and then. The next call goes on where the time of this one was over.
        """
        end = time.monotonic() + seconds

        def whole(step: Callable[[], int], goes_on: Callable[[int], bool]) -> int:
            """The sum of all steps of a walk, until it has come round or the time is over."""
            total = done = step()
            while goes_on(done) and time.monotonic() < end:
                done = step()
                total += done
            return total

        opened = whole(partial(open_due, using=using), bool)
        deleted = whole(partial(self._delete_waits, using), lambda _: self._last_wait > 0)
        deleted += whole(partial(self._delete_slots, using), lambda _: self._last_slot != (-1, -1))
        deleted += retry_transient("promote", partial(_delete_gates, using), using=using)
        opened += whole(partial(self._open_lost, using), lambda _: self._last_lost is not None)
        return _counts(deleted, opened + whole(partial(self._open_free, using), lambda _: self._last_subject >= 0))

    def soon(self) -> None:
        """Sweep at the next call: workers with other code may have begun or ended."""
        self._next = 0.0

    def _delete_waits(self, using: str) -> int:
        """Delete the rows of jobs that do not wait behind a gate: they were canceled, or opened by others."""
        waits = GateWait.objects.using(using).filter(pk__gt=self._last_wait).order_by("pk")
        rows: dict[int, int] = dict(read_all(waits.values_list("pk", "subject")[:SLICE], using))
        ids = list(rows)
        self._last_wait = ids[-1] if len(ids) == SLICE else 0
        deleted = 0
        for some in _batches(ids):
            waiting = Job.objects.using(using).filter(pk__in=some, status=Job.Status.READY, gate=FLOW_GATE)
            found = read_all(waiting.values_list("pk", "queue", "task"), using)
            known = {job_id: (queue, task) for job_id, queue, task in found}
            if idle := [one for one in some if one not in known]:
                gone = GateWait.objects.using(using).filter(pk__in=idle)
                deleted += retry_transient("promote", partial(_delete_unlocked, gone, using), using=using)
            places: dict[int, set[tuple[str, str | None]]] = defaultdict(set)
            for job_id, place in known.items():
                places[rows[job_id]].add(place)
            if places:
                raise_limits(places, self._workers, using)
        return deleted

    def _delete_slots(self, using: str) -> int:
        """Delete the slots of leases that have ended: each key has had some."""
        subject, number = self._last_slot
        rows = GateSlot.objects.using(using).filter(Q(subject=subject, number__gt=number) | Q(subject__gt=subject))
        look = rows.order_by("subject", "number").values_list(*Slot._fields)[:SLICE]
        found = [*map(Slot._make, read_all(look, using))]
        self._last_slot = found[-1][:2] if len(found) == SLICE else (-1, -1)
        ended: list[Slot] = []
        for some in _batches(found):
            running = Job.objects.using(using).filter(
                pk__in=[slot.job_id for slot in some], status=Job.Status.PROCESSING
            )
            fences = dict(read_all(running.values_list("pk", "fence"), using))
            ended += [slot for slot in some if fences.get(slot.job_id) != slot.fence]
        return sum(
            retry_transient("promote", partial(_delete_ended, some, using), using=using)
            for some in _batches(ended, SLOTS)
        )

    def _open_lost(self, using: str) -> int:
        """Open jobs behind a gate that nobody would open, because plain SQL has deleted their rows there."""
        ids, opened = self._next_closed(using), 0
        for some in _batches(ids):
            waits = GateWait.objects.using(using).filter(pk__in=some).values_list("pk", flat=True)
            known = {*read_all(waits, using)}
            if lost := [one for one in some if one not in known]:
                opened += len(open_jobs(lost, using))
        return opened

    def _next_closed(self, using: str) -> list[int]:
        """The ids of the next SLICE jobs behind gates: by queue, then as claims come to them."""
        names = retry_transient("promote", partial(queue_names, using=using), using=using)
        first, after = self._last_lost or (None, None)
        places = [(name, int(Job.Status.READY), FLOW_GATE) for name in names if first is None or name >= first.queue]
        ranked = retry_transient("promote", lambda: list(chain.from_iterable(ranks(places, using))), using=using)
        ids: list[int] = []
        for level in sorted(ranked, key=_in_order):
            if first is not None and _in_order(level) < _in_order(first):
                continue
            rows = Job.objects.using(using).filter(queue=level.queue, status=level.status, gate=level.gate)
            in_order = vendor(using).force_index(rows.filter(priority=level.level).order_by("run_at", "id"), INDEX)
            place = after if level == first else None
            rest = partial(_rows_behind, in_order, place, SLICE - len(ids), using)
            found = retry_transient("promote", rest, using=using)
            ids += [place.job_id for place in found]
            if len(ids) == SLICE:
                self._last_lost = level, found[-1]
                return ids
        self._last_lost = None
        return ids

    def _open_free(self, using: str) -> int:
        """Open jobs of gates with free slots, and let those be looked at that have no time, or one too far ahead."""
        some = retry_transient("promote", partial(subjects_waiting, self._last_subject, BATCH, using), using=using)
        self._last_subject = some[-1] if len(some) == BATCH else -1
        return _open_free(some, self._workers, using) if some else 0


def _batches(rows: Sequence[_T], size: int = BATCH) -> Iterator[Sequence[_T]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _counts(deleted: int, opened: int) -> Counter[str]:
    return Counter(gates_rows_deleted=deleted, gates_jobs_opened=opened)


def _delete_gates(using: str) -> int:
    """Delete gates with full buckets at which nobody waits."""
    waits = GateWait.objects.filter(subject=OuterRef("pk"))
    old = Gate.objects.using(using).filter(updated_at__lt=UtcNowPlus(-IDLE_SECONDS), opens_at=None)
    idle = old.filter(Q(used_until=None) | Q(used_until__lt=UtcNow())).filter(~Exists(waits))
    ids = list(idle.order_by("updated_at").values_list("pk", flat=True)[:BATCH])
    # Again in the locked row: a claim may have used it just now.
    return _delete_unlocked(idle.filter(pk__in=ids), using) if ids else 0


def _delete_unlocked(rows: QuerySet[Any], using: str) -> int:
    """Delete those of these rows that no other transaction has locked."""
    with vendor(using).transaction(connections[using]):
        ids = list(vendor(using).lock_rows(rows.order_by("pk")).values_list("pk", flat=True))
        return rows.model._base_manager.using(using).filter(pk__in=ids).delete()[0] if ids else 0


def _rows_behind(rows: JobQuerySet, after: Place | None, most: int, using: str) -> list[Place]:
    return [Place(run_at, job_id) for run_at, job_id, *_ in behind(rows, None, after, most, using)]


def _delete_ended(slots: Sequence[Slot], using: str) -> int:
    """Delete those of these slots that no claim has given to another lease meanwhile, nor is giving away now."""
    rows = GateSlot.objects.using(using)
    with vendor(using).transaction(connections[using]):
        locked = vendor(using).lock_rows(rows.filter(_any_of(slots)).order_by("subject", "number"))
        mine = [Slot._make(row) for row in locked.values_list(*Slot._fields)]
        return rows.filter(_any_of(mine)).delete()[0] if mine else 0


def _any_of(slots: Iterable[Slot]) -> Q:
    return Q(*(Q(**slot._asdict()) for slot in slots), _connector=Q.OR)


def _in_order(level: Level) -> tuple[str, int]:
    return level.queue, -level.level


def _open_free(some: Sequence[int], workers: Workers, using: str) -> int:
    opened = open_free(some, using=using)
    rows = Gate.objects.using(using).filter(pk__in=some).values_list("pk", flat=True)
    known = {*read_all(rows, using)}
    if lost := {subject: BATCH for subject in some if subject not in known}:
        # Those who open gates find them by their rows. The claim closes again what may not start.
        opened += open_first(lost, using=using)
    _mend_late(some, using)
    renew_limits(some, workers, using)
    unset = Q(opens_at=None, most=None) & ~Q(per_second=0.0)
    gates = Gate.objects.using(using).filter(unset | _TOO_LATE, pk__in=some)
    retry_transient("promote", partial(gates.update, opens_at=UtcNow()), using=using)
    return opened


def _mend_late(subjects: Sequence[int], using: str) -> None:
    """Empty the buckets of which tokens are used up to a time that is not to come soon, but leave no more than that."""
    late = Gate.objects.using(using).filter(_TOO_LATE, pk__in=subjects, per_second__gt=0)
    for gate in read_all(late.annotate(now=Selected(UtcNow())), using):
        retry_transient("promote", partial(mend, gate, gate.per_second or 0.0, using), using=using)


def renew_limits(subjects: Collection[int], workers: Workers, using: str) -> None:
    """Let those of these gates be looked at that have other limits than the task that they name."""
    gates = _limited(subjects, using)
    if not gates:
        return
    known, running = rules(using), retry_transient("promote", partial(workers, using), using=using)
    found = ((gate, limits_in_effect(gate, running, known)) for gate in gates)
    _write_limits([(gate, own) for gate, own in found if own is not None and own != _limits(gate)], using)


def raise_limits(waiting: Mapping[int, Collection[tuple[str, str | None]]], workers: Workers, using: str) -> None:
    """Let gates be looked at behind which jobs of a task with a higher limit wait than that of the task that they name.

    `waiting`: queues and tasks of jobs that wait, by subject. Tasks may share a key of their queue.
    """
    gates = [gate for gate in _limited(waiting, using) if any(place != gate[1:3] for place in waiting[gate.subject])]
    if not gates:
        return
    known, running = rules(using), retry_transient("promote", partial(workers, using), using=using)
    higher: list[tuple[LimitedGate, _Limits]] = []
    for gate in gates:
        best = gate
        for queue, task in waiting[gate.subject]:
            if task is None or (queue, task) == gate[1:3]:
                continue
            other = limits_in_effect(gate._replace(queue=queue, task=task), running, known)
            if other is not None and _is_higher(other, _limits(best)):
                best = gate._replace(task=task, most=other[0], per_second=other[1])
        if best is not gate:
            higher.append((best, _limits(best)))
    _write_limits(higher, using)


def _is_higher(limits: _Limits, others: _Limits) -> bool:
    return any(
        other is not None and (limit is None or limit > other) for limit, other in zip(limits, others, strict=True)
    )


def _limits(gate: LimitedGate) -> _Limits:
    return gate.most, gate.per_second


def _limited(subjects: Collection[int], using: str) -> list[LimitedGate]:
    rows = Gate.objects.using(using).filter(pk__in=subjects, queue__isnull=False, task__isnull=False)
    limited = rows.exclude(most=None, per_second=None).values_list(*LimitedGate._fields)
    return [LimitedGate(*row) for row in read_all(limited, using)]


def _write_limits(gates: Sequence[tuple[LimitedGate, _Limits]], using: str) -> None:
    alike: dict[tuple[str, _Limits], list[int]] = defaultdict(list)
    for gate, limits in gates:
        alike[gate.task, limits].append(gate.subject)
    for (task, (most, per_second)), subjects in alike.items():
        rows = Gate.objects.using(using).filter(pk__in=subjects)
        values = {"task": task, "most": most, "per_second": per_second}
        update_unlocked(rows, using, **values, opens_at=UtcNow(), updated_at=UtcNow())
