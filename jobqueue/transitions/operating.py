"""One transaction of a verb that people use: rows that are found by their ids, locked, and written one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from django.db import connections
from django.db.models import Q, QuerySet

from jobqueue import wakeup
from jobqueue.db import vendor
from jobqueue.db.redone import Verb
from jobqueue.gates.opening import ended_unstarted
from jobqueue.models import Job
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import JobRef, Portion, Written, end_in_groups, run_verb

#: writes the row of a job that is locked; returns the column that holds the instant of its write, None: no write
Change: TypeAlias = Callable[[Job, str], str | None]
#: the new status, by that column
_STATUS_OF = {
    "finished_at": Job.Status.CANCELED,
    "run_at": Job.Status.READY,
    "cancel_requested_at": Job.Status.PROCESSING,
}


@dataclass(slots=True)
class _Write:
    """The last try's write: the column that holds its instant, and that instant.

    No other write of the job has both, so a try after a lost answer recognizes its own work by them.
    """

    column: str = ""
    instant: datetime | None = None
    key: bytes | None = None  # the job's concurrency key


def operate(verb: Verb, ids: Sequence[int], change: Change, *, using: str, only: Q | None = None) -> int:
    """Let `change` write the jobs of `ids`, in one transaction; how many it wrote. `only` as in lock()."""
    made: dict[int, _Write] = {}

    def write(tries: int) -> Written:
        written: dict[Job.Status, list[Lease | JobRef]] = defaultdict(list)
        changed: list[tuple[int, object, Job.Status]] = []
        with vendor(using).transaction(connections[using]):
            for job, matches in lock(ids, using, only):
                done = made.setdefault(job.pk, _Write())
                # The work of an earlier try has been done, though the job does not match any more.
                if not (done.instant and getattr(job, done.column) == done.instant):
                    changed_at = change(job, using) if matches else None
                    done.column, done.instant, done.key = changed_at or "", None, job.concurrency_key
                    if not done.column:
                        continue
                    changed.append((job.pk, job.options, _STATUS_OF[done.column]))
                    done.instant = rows_of([job.pk], using).values_list(done.column, flat=True).get()
                ref = JobRef(job.pk, job.queue, job.task, job.ordering_key, using)
                written[_STATUS_OF[done.column]].append(ref)
            end_in_groups(changed, using)
        return written

    found = run_verb(verb, [Portion(using, write)], {}).written
    for queue in {job.queue for job in found.get(Job.Status.READY, ())}:
        wakeup.notify(queue, using)
    for job in found.get(Job.Status.CANCELED, ()):
        # It may have been opened for a slot or a token.
        ended_unstarted([(job.task, made[job.job_id].key)], job.queue, using=using)
    return sum(map(len, found.values()))


def lock(ids: Sequence[int], using: str, only: Q | None = None) -> list[tuple[Job, bool]]:
    """Lock the jobs of `ids` in this transaction, in the order of their ids; and whether `only` is true of each now.

    Ids that were found by a filter say nothing about the rows as they are when they are locked.
    """
    rows = rows_of(ids, using).order_by("pk").select_for_update()
    if only is None:
        return [(job, True) for job in rows]
    # Among the columns, and not in WHERE: there it could lead to an index through which other rows are locked.
    return [(job, job.matches) for job in rows.annotate(matches=only)]


def rows_of(ids: Sequence[int], using: str) -> QuerySet[Job]:
    """The jobs of `ids`, without what may be large."""
    rows = Job.objects.using(using)
    # Django answers for an id that no column holds only where it is compared alone.
    found = rows.filter(pk=ids[0]) if len(ids) == 1 else rows.filter(pk__in=ids)
    return found.defer("payload", "result", "last_error")
