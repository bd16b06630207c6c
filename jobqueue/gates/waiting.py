"""Jobs behind gates: close_gates() puts them there, in the claim's transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from jobqueue.db.clock import UtcNow
from jobqueue.db.upsert import upsert
from jobqueue.gates.subjects import Subject, dependency_named
from jobqueue.models import Gate, GateWait, Job
from jobqueue.models.rows import in_state

#: `gate` of a job that waits for a slot, a token, a breaker or the end of its task's pause; 1 and 2 are in use
FLOW_GATE = 3


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
    groups: dict[str, list[int]] = defaultdict(list)
    for one in blocked:
        groups[one.subject.wait_reason].append(one.job_id)
    for reason, ids in groups.items():
        rows = in_state(ids, Job.Status.READY, using=using).filter(gate=0)
        rows.update(gate=FLOW_GATE, wait_reason=reason, updated_at=UtcNow())
    _write_gates(blocked, queue, using)
    waiting = GateWait.objects.using(using)
    # A job that was opened by plain SQL, or by an older release, may have left a row.
    waiting.filter(pk__in=[one.job_id for one in blocked]).delete()
    waiting.bulk_create(
        GateWait(job_id=one.job_id, subject=one.subject.number, urgency=-one.priority, run_at=one.run_at)
        for one in blocked
    )


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
