"""Repairs what a crash between two commits has left of gates: no job waits for ever, and no row stays for nothing.

Each pass looks at a slice of each table and goes on there with the next one, so its cost does not grow with them.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from django.db import connections
from django.db.models import Exists, F, OuterRef, Q, Value
from django.db.models.functions import NullIf

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.gates.buckets import mend
from jobqueue.gates.opening import open_first, open_free, open_jobs
from jobqueue.gates.rules import rules
from jobqueue.gates.subjects import rate_subject, slot_subject
from jobqueue.gates.timing import UNCLAIMED_SECONDS, open_due
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Gate, GateSlot, GateWait, Job
from jobqueue.transitions.claiming.candidates import INDEX, queue_names

#: a job that a crash has left behind a gate starts so much later at most
INTERVAL_SECONDS = 30.0
#: rows of one statement, and of one pass
BATCH, SLICE = 1000, 10_000
#: gates that nobody has used for so long are deleted: the next use makes a new one
IDLE_SECONDS = 86_400.0
#: how far ahead a time may lie without a look; besides the time of one token, where tokens are waited for
AHEAD_SECONDS, PACED_SECONDS = 60.0, 2 * UNCLAIMED_SECONDS
_TOKEN_SECONDS = Value(1.0) / NullIf(F("per_second"), Value(0.0))
#: gates whose time may come from a clock that was ahead and was set back
_TOO_LATE = Q(per_second=None, opens_at__gt=UtcNowPlus(AHEAD_SECONDS)) | Q(
    per_second__gt=0, opens_at__gt=UtcNowPlus(Value(PACED_SECONDS) + _TOKEN_SECONDS)
)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one pass did."""

    rows_deleted: int = 0  # of jobs that no longer wait, leases that have ended, and gates that nobody uses
    jobs_opened: int = 0


def run_once(settings: Settings, *, using: str) -> SweepResult:
    """Open what is due, and sweep the tables as a whole: for a command that looks now and then."""
    deleted, opened, sweep = 0, 0, GateSweep(interval_seconds=0.0)
    while found := open_due(using=using):
        opened += found
    while True:
        done = sweep.run_once(settings, using=using)
        deleted, opened = deleted + done.rows_deleted, opened + done.jobs_opened
        if sweep.is_through:
            return SweepResult(deleted, opened)


class GateSweep:
    """Sweeps every INTERVAL_SECONDS; called more often. Two sweeps at the same time do no harm."""

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._interval_seconds, self._next = interval_seconds, 0.0
        self._last_wait, self._last_slot = 0, (-1, -1)

    @property
    def is_through(self) -> bool:
        """Whether the next pass begins at the first rows again."""
        return self._last_wait == 0 and self._last_slot == (-1, -1)

    def run_once(self, settings: Settings, *, using: str) -> SweepResult:
        """Sweep if it is due: a few index seeks where no job waits behind a gate."""
        if time.monotonic() < self._next:
            return SweepResult()
        self._next = time.monotonic() + self._interval_seconds
        deleted = self._delete_waits(using) + self._delete_slots(using)
        deleted += retry_transient("promote", partial(_delete_gates, using), using=using)
        return SweepResult(deleted, _open_lost(using) + _open_free(using))

    def _delete_waits(self, using: str) -> int:
        """Delete the rows of jobs that do not wait behind a gate: they were canceled, or opened by others."""
        waits = GateWait.objects.using(using).filter(pk__gt=self._last_wait).order_by("pk").values_list("pk", flat=True)
        ids: list[int] = retry_transient("promote", partial(list, waits[:SLICE]), using=using)
        self._last_wait = ids[-1] if len(ids) == SLICE else 0
        deleted = 0
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            waiting = Job.objects.using(using).filter(pk__in=some, status=Job.Status.READY, gate=FLOW_GATE)
            known: set[int] = retry_transient(
                "promote", partial(set, waiting.values_list("pk", flat=True)), using=using
            )
            if idle := [one for one in some if one not in known]:
                gone = GateWait.objects.using(using).filter(pk__in=idle)
                deleted += retry_transient("promote", gone.delete, using=using)[0]
        return deleted

    def _delete_slots(self, using: str) -> int:
        """Delete the slots of leases that have ended: each key has had some."""
        subject, number = self._last_slot
        rows = GateSlot.objects.using(using).filter(Q(subject=subject, number__gt=number) | Q(subject__gt=subject))
        columns = ("subject", "number", "job_id", "fence")
        found: list[tuple[int, int, int, int]] = retry_transient(
            "promote", partial(list, rows.order_by(*columns[:2]).values_list(*columns)[:SLICE]), using=using
        )
        self._last_slot = found[-1][:2] if len(found) == SLICE else (-1, -1)
        deleted = 0
        for start in range(0, len(found), BATCH):
            some = found[start : start + BATCH]
            running = Job.objects.using(using).filter(pk__in=[row[2] for row in some], status=Job.Status.PROCESSING)
            fences: dict[int, int] = retry_transient(
                "promote", partial(dict, running.values_list("pk", "fence")), using=using
            )
            for row in some:
                if fences.get(row[2]) != row[3]:
                    # Only if no claim has given it to another lease meanwhile.
                    mine = GateSlot.objects.using(using).filter(**dict(zip(columns, row, strict=True)))
                    deleted += retry_transient("promote", mine.delete, using=using)[0]
        return deleted


def _delete_gates(using: str) -> int:
    """Delete gates with full buckets at which nobody waits."""
    waits = GateWait.objects.filter(subject=OuterRef("pk"))
    old = Gate.objects.using(using).filter(updated_at__lt=UtcNowPlus(-IDLE_SECONDS), opens_at=None)
    idle = old.filter(Q(used_until=None) | Q(used_until__lt=UtcNow())).filter(~Exists(waits))
    ids = list(idle.order_by("updated_at").values_list("pk", flat=True)[:BATCH])
    # Again in the DELETE: a claim may have used it just now.
    return idle.filter(pk__in=ids).order_by().delete()[0] if ids else 0


def _open_lost(using: str) -> int:
    """Open jobs behind a gate that nobody would open, because plain SQL has deleted their rows there."""
    opened = 0
    for name in retry_transient("promote", partial(queue_names, using=using), using=using):
        rows = Job.objects.using(using).filter(queue=name, status=Job.Status.READY, gate=FLOW_GATE)
        closed = (
            vendor(using).force_index(rows.order_by("priority", "run_at", "id"), INDEX).values_list("pk", flat=True)
        )
        ids: list[int] = retry_transient("promote", partial(list, closed[:SLICE]), using=using)
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            waits = GateWait.objects.using(using).filter(pk__in=some).values_list("pk", flat=True)
            known: set[int] = retry_transient("promote", partial(set, waits), using=using)
            if lost := [one for one in some if one not in known]:
                opened += len(open_jobs(lost, using))
    return opened


def _open_free(using: str) -> int:
    """Open jobs of gates with free slots, and let those be looked at that have no time, or one too far ahead."""
    opened = 0
    subjects = retry_transient("promote", partial(_subjects, using), using=using)
    for start in range(0, len(subjects), BATCH):
        some = subjects[start : start + BATCH]
        opened += open_free(some, using=using)
        rows = Gate.objects.using(using).filter(pk__in=some).values_list("pk", flat=True)
        known: set[int] = retry_transient("promote", partial(set, rows), using=using)
        if lost := {subject: BATCH for subject in some if subject not in known}:
            # Those who open gates find them by their rows. The claim closes again what may not start.
            opened += open_first(lost, using=using)
        _mend_late(some, using)
        _drop_old_limits(some, using)
        unset = Q(opens_at=None, most=None) & ~Q(per_second=0.0)
        gates = Gate.objects.using(using).filter(unset | _TOO_LATE, pk__in=some)
        retry_transient("promote", partial(gates.update, opens_at=UtcNow()), using=using)
    return opened


def _mend_late(subjects: list[int], using: str) -> None:
    """Empty the buckets of which tokens are used up to a time that is not to come soon, but leave no more than that."""
    late = Gate.objects.using(using).filter(_TOO_LATE, pk__in=subjects, per_second__gt=0)
    gates: list[Gate] = retry_transient("promote", partial(list, late.annotate(now=Selected(UtcNow()))), using=using)
    for gate in gates:
        retry_transient("promote", partial(mend, gate, gate.per_second or 0.0, using), using=using)


def _drop_old_limits(subjects: Collection[int], using: str) -> None:
    """Let gates be looked at whose limit was written by a claim that did not know yet what an operator had set."""
    for (queue, task), rule in rules(using).tasks.items():
        own = Gate.objects.using(using).filter(pk__in=subjects)
        slots = own.filter(pk=slot_subject(queue, task).number).exclude(most=None)
        paced = own.filter(pk=rate_subject(queue, task).number).exclude(per_second=None)
        for sets, rows, written in (
            (rule.sets_concurrency, slots, {"most": rule.concurrency}),
            (rule.sets_rate, paced, {"per_second": rule.per_second}),
        ):
            if sets:
                old = rows.exclude(**written)
                retry_transient(
                    "promote", partial(old.update, opens_at=UtcNow(), most=None, per_second=None), using=using
                )


def _subjects(using: str) -> list[int]:
    """Those for which jobs wait, one index seek for each."""
    connection = connections[using]
    table, column = map(connection.ops.quote_name, (GateWait._meta.db_table, "subject"))
    with connection.cursor() as cursor:
        cursor.execute(vendor(using).distinct_sql(table, column, "ix_gate_wait"), [SLICE])
        return [int(subject) for (subject,) in cursor.fetchall()]
