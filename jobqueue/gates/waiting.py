"""Jobs behind gates: close_gates() puts them there, in the claim's transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

from django.db import connections, transaction

from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import ByKey
from jobqueue.db.prepared import Prepared, prepare_change
from jobqueue.db.upsert import upsert
from jobqueue.gates.subjects import Subject, dependency_named
from jobqueue.models import Gate, GateWait, Job
from jobqueue.models.rows import any_in_state

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


def close_gates(blocked: Sequence[Blocked], queue: str, using: str) -> None:
    """Put READY jobs, whose rows the open transaction has locked, behind their gates."""
    _write_gates(blocked, queue, using)
    for start in range(0, len(blocked), CHUNK):
        some = blocked[start : start + CHUNK]
        reasons = {one.job_id: one.subject.wait_reason for one in some}
        _close(using).change(ids=reasons, reason=reasons)
        # A job that was opened by plain SQL, or by an older release, may have left a row.
        delete_waits(reasons, using)
        _insert_waits({one.job_id: one.subject.number for one in some}, using)


@cache
def _close(using: str) -> Prepared:
    rows = any_in_state(Job.Status.READY, using=using).filter(gate=0)
    reason = ByKey("reason", Job._meta.get_field("wait_reason"))
    return prepare_change(rows, {"gate": FLOW_GATE, "wait_reason": reason, "updated_at": UtcNow()})


def delete_waits(ids: Iterable[int], using: str) -> None:
    """Delete the rows of jobs that wait no longer."""
    with transaction.mark_for_rollback_on_error(using=using), connections[using].cursor() as cursor:
        cursor.execute(_sql(using).delete.format(ids=_numbers(ids)))


def _insert_waits(subjects: Mapping[int, int], using: str) -> None:
    """A row for each job, with its subject. The rest is read from the job: an instant of Python costs more."""
    branches = " ".join(f"WHEN {int(job_id)} THEN {int(subject)}" for job_id, subject in subjects.items())
    with transaction.mark_for_rollback_on_error(using=using), connections[using].cursor() as cursor:
        cursor.execute(_sql(using).insert.format(branches=branches, ids=_numbers(subjects)))


class _Sql(NamedTuple):
    delete: str
    insert: str


@cache
def _sql(using: str) -> _Sql:
    quote = connections[using].ops.quote_name
    waits, jobs = quote(GateWait._meta.db_table), quote(Job._meta.db_table)
    job_id, subject, urgency, run_at, pk, priority = map(
        quote, ("job_id", "subject", "urgency", "run_at", "id", "priority")
    )
    return _Sql(
        f"DELETE FROM {waits} WHERE {job_id} IN ({{ids}})",
        f"INSERT INTO {waits} ({job_id}, {subject}, {urgency}, {run_at}) "
        f"SELECT {pk}, CASE {pk} {{branches}} END, -{priority}, {run_at} FROM {jobs} WHERE {pk} IN ({{ids}})",
    )


def _numbers(ids: Iterable[int]) -> str:
    return ",".join(str(int(one)) for one in ids)


def _write_gates(blocked: Sequence[Blocked], queue: str, using: str) -> None:
    """What is known of the gates, for those who open them: they may run in a process that does not know the task."""
    # In one order, so that two claims do not wait for each other crosswise.
    # Of several limits of one key the smallest counts.
    order = sorted(blocked, key=lambda one: (one.subject.number, one.most is not None, -(one.most or 0)))
    found = {one.subject.number: one for one in order}
    groups: dict[tuple[str, ...], list[Gate]] = defaultdict(list)
    for number, one in found.items():
        # Jobs of any queue wait for a dependency.
        place = (queue, one.task) if dependency_named(one.subject.wait_reason) is None else (None, None)
        row = Gate(subject=number, wait_reason=one.subject.wait_reason, queue=place[0], task=place[1])
        # Used now: the sweep deletes gates that nobody has used for long.
        row.most, row.opens_at, row.updated_at = one.most, one.opens_at, UtcNow()
        # The bucket of a rate has written its own columns in this transaction.
        written = (
            "queue",
            "task",
            "updated_at",
            *(name for name in ("most", "opens_at") if getattr(row, name) is not None),
        )
        groups[written].append(row)
    for written, rows in groups.items():
        upsert(Gate.objects.using(using), rows, keys=("subject",), changed=written)
