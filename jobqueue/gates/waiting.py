"""Jobs behind gates: close_gates() puts them there, in the claim's transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

from django.db import connections
from django.db.models import BigIntegerField, F, Q, Value

from jobqueue.db import vendor
from jobqueue.db.clock import Stored, UtcNow, UtcNowPlus
from jobqueue.db.expressions import AnyOf, ByKey, Keys
from jobqueue.db.prepared import Prepared, prepare_change, prepare_delete, prepare_insert
from jobqueue.db.upsert import upsert
from jobqueue.gates.limits import Subject, dependency_named
from jobqueue.gates.unlocked import unlocked_of, update_unlocked
from jobqueue.models import Gate, GateWait, Job
from jobqueue.models.rows import any_in_state, in_state

#: `gate` of a job that waits for a slot, a token, a breaker or the end of its task's pause; 1 and 2 are in use
FLOW_GATE = 3
#: jobs of one statement: each row is compared with half of the branches of a CASE
CHUNK = 100


class Blocked(NamedTuple):
    """A job that may not start, and what it waits for."""

    job_id: int
    priority: int
    run_at: datetime
    subject: Subject
    task: str | None = None
    most: int | None = None  # slots that the subject has, if it waits for one
    opens_at: datetime | None = None  # when a pause ends by itself


def close_gates(blocked: Sequence[Blocked], queue: str, using: str) -> set[int]:
    """Put READY jobs, whose rows the open transaction has locked, behind their gates.

    Returns the subjects whose gates others keep locked: what is known of them was not written, so that whoever opens
    them may miss these jobs. look_soon() is due after the commit.
    """
    unwritten = _write_gates(blocked, queue, using)
    for start in range(0, len(blocked), CHUNK):
        some = blocked[start : start + CHUNK]
        reasons = {one.job_id: one.subject.wait_reason for one in some}
        _close(using).change(ids=reasons, reason=reasons)
        # A job that was opened by plain SQL, or by an older release, may have left a row.
        delete_waits(reasons, using)
        _insert(using).change(ids=reasons, subject={one.job_id: one.subject.number for one in some})
    return unwritten


def look_soon(subjects: Collection[int], using: str, *, seconds: float = 0.0) -> None:
    """Let those who open gates look at these in so many seconds, if they would not earlier.

    A gate that another transaction has locked is left to it, and to the sweep.
    """
    if subjects:
        gates = Gate.objects.using(using).filter(pk__in=sorted(subjects))
        # Also if its time has come: whoever looks at it just now would take the time away.
        others = gates.filter(Q(opens_at=None) | Q(opens_at__gt=UtcNowPlus(seconds)) | Q(opens_at__lte=UtcNow()))
        update_unlocked(others, using, opens_at=UtcNowPlus(seconds), updated_at=UtcNow())


def subjects_waiting(after: int, most: int, using: str) -> list[int]:
    """The next `most` subjects above `after` for which jobs wait, in order: one index seek for each."""
    connection = connections[using]
    table, column = map(connection.ops.quote_name, (GateWait._meta.db_table, "subject"))
    with connection.cursor() as cursor:
        cursor.execute(vendor(using).loose_scan_sql(table, [column], "ix_gate_wait", after=True), [after, most])
        return [int(subject) for (subject,) in cursor.fetchall()]


def delete_waits(ids: Iterable[int], using: str) -> None:
    """Delete the rows of jobs that wait no longer."""
    _delete(using).change(ids=ids)


def open_again(job_id: int, reason: str | None, using: str) -> None:
    """Let a READY job ask for its limits again, whose row the open transaction has locked: its key has changed."""
    rows = in_state([job_id], Job.Status.READY, using=using).filter(gate=FLOW_GATE)
    if rows.update(gate=0, wait_reason=reason, updated_at=UtcNow()):
        delete_waits([job_id], using)


@cache
def _close(using: str) -> Prepared:
    rows = any_in_state(Job.Status.READY, using=using).filter(gate=0)
    reason = ByKey("reason", Job._meta.get_field("wait_reason"))
    return prepare_change(rows, {"gate": FLOW_GATE, "wait_reason": reason, "updated_at": UtcNow()})


@cache
def _delete(using: str) -> Prepared:
    ids = Keys("ids", BigIntegerField())
    return prepare_delete(GateWait.objects.using(using).filter(AnyOf(F("job_id"), ids)))


@cache
def _insert(using: str) -> Prepared:
    """A row for each job, with its subject. The rest is read from the job: an instant of Python costs more."""
    rows = Job.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    subject = ByKey("subject", BigIntegerField())
    found = rows.order_by().values_list("pk", subject, Value(0) - F("priority"), Stored(F("run_at")))
    return prepare_insert(GateWait, ("job_id", "subject", "urgency", "run_at"), found)


def _write_gates(blocked: Sequence[Blocked], queue: str, using: str) -> set[int]:
    """What is known of the gates, for those who open them: they may run in a process that does not know the task."""
    # In one order, so that two claims do not wait for each other crosswise.
    # Of several limits of one key the smallest counts.
    order = sorted(blocked, key=lambda one: (one.subject.number, one.most is not None, -(one.most or 0)))
    found = {one.subject.number: one for one in order}
    free = unlocked_of(found, using)
    groups: dict[tuple[str, ...], list[tuple[object, ...]]] = defaultdict(list)
    for number, one in found.items():
        if number not in free:
            continue
        # Jobs of any queue wait for a dependency.
        place = (queue, one.task) if dependency_named(one.subject.wait_reason) is None else (None, None)
        # The bucket of a rate has written its own columns in this transaction.
        known = {"most": one.most, "opens_at": one.opens_at}
        own = {name: value for name, value in known.items() if value is not None}
        groups[tuple(own)].append((number, one.subject.wait_reason, *place, *own.values()))
    for own_names, rows in sorted(groups.items()):
        changed = ("wait_reason", "queue", "task", *own_names)
        # Used now: the sweep deletes gates that nobody has used for long.
        upsert(Gate, rows, keys=("subject",), changed=changed, stamped=("updated_at",), using=using)
    return found.keys() - free
