"""PROCESSING -> READY or FAILED when a lease ran out: its holder died, froze or lost the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import JobLost
from jobqueue.failures import FailureCause, describe
from jobqueue.models import Job, JobAttempt
from jobqueue.models.rows import in_state
from jobqueue.signals import job_dead, job_reaped
from jobqueue.transitions.failing import attempt_row, failed_columns, one_more
from jobqueue.transitions.leases import Lease, canceled, lease_of
from jobqueue.transitions.verb import Portion, Signals, Written, charged_fences, run_verb
from jobqueue.validation import check_int

_SIGNALS: Signals = {
    Job.Status.READY: [(job_reaped, {})],
    Job.Status.FAILED: [(job_reaped, {}), (job_dead, {"cause": FailureCause.LOST})],
    Job.Status.CANCELED: [(job_reaped, {})],
}
_Ended = dict[Job.Status, list[Lease]]


@dataclass(frozen=True, slots=True)
class Reaped:
    """How many lapsed leases one pass ended, by what became of the job."""

    requeued: int = 0
    dead: int = 0
    canceled: int = 0

    @property
    def total(self) -> int:
        return self.requeued + self.dead + self.canceled

    def __add__(self, other: Reaped) -> Reaped:
        return Reaped(self.requeued + other.requeued, self.dead + other.dead, self.canceled + other.canceled)


def reap(limit: int = 1000, *, using: str | None = None) -> Reaped:
    """End up to `limit` leases that have run out, oldest first: attempts + 1, READY at once or FAILED at max_attempts.

    run_at is unchanged. Any number of reapers may run at once: each takes rows no other has locked. One call is
    one bounded transaction; call again while it returns as many as `limit`.
    """
    check_int(limit, "limit", 1, 100_000)
    alias = alias_of(using)
    written = run_verb("reap", [Portion(alias, partial(_write, limit, alias, []))], _SIGNALS).written
    sizes = {status: len(leases) for status, leases in written.items()}
    return Reaped(
        requeued=sizes.get(Job.Status.READY, 0),
        dead=sizes.get(Job.Status.FAILED, 0),
        canceled=sizes.get(Job.Status.CANCELED, 0),
    )


def _write(limit: int, using: str, earlier: list[_Ended], tries: int) -> Written:
    """What became of the leases that ended, by `earlier` tries too: one may have been committed without an answer."""
    ended: _Ended = defaultdict(list)
    before = _committed(earlier, using)
    found = vendor(using)
    with found.transaction(connections[using]):
        expired = found.force_index(Job.objects.using(using).expired().order_by("lock_until"), "ix_lease")
        rows = found.lock_rows(expired.defer("payload", "result", "last_error"))[:limit]
        groups: dict[tuple[Job.Status, str], list[Lease]] = defaultdict(list)
        for job in rows:
            groups[_next_status(job), job.locked_by or ""].append(lease_of(job, using))
        for (status, worker), leases in groups.items():
            changes, history = _lost(status, worker, leases)
            ids = [lease.job_id for lease in leases]
            # Status and lapse again in the WHERE: not every database kept these rows locked since they were read.
            in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_until__lt=UtcNow()).update(**changes)
            JobAttempt.objects.using(using).bulk_create(history, batch_size=500)
            ended[status] += leases
        earlier.append(ended)
    return {status: before[status] + ended[status] for status in {**before, **ended}}


def _committed(earlier: Sequence[_Ended], using: str) -> _Ended:
    """Those of `earlier` tries that are on record."""
    found: _Ended = defaultdict(list)
    for ended in earlier:
        charged = charged_fences(chain.from_iterable(ended.values()), using=using) if ended else set()
        for status, leases in ended.items():
            found[status] += [lease for lease in leases if (lease.job_id, lease.fence) in charged]
    return found


def _next_status(job: Job) -> Job.Status:
    if job.cancel_requested_at is not None:
        return Job.Status.CANCELED
    return Job.Status.FAILED if job.attempts + 1 >= job.max_attempts else Job.Status.READY


def _lost(status: Job.Status, worker: str, leases: Sequence[Lease]) -> tuple[dict[str, object], list[JobAttempt]]:
    """The columns of these jobs, whose leases were the worker's, and the attempts to record."""
    error = JobLost(
        f"the lease of worker {worker} ran out without an answer: the process died, froze or lost the database. "
        "The attempt counts; the job runs again while attempts are left."
    )
    text = describe(error)
    changes: dict[str, object] = failed_columns(text, FailureCause.LOST, one_more("attempts"))
    if status is Job.Status.READY:
        changes |= {"status": status, "wait_reason": "its last worker's lease ran out"}
    elif status is Job.Status.FAILED:
        changes |= {"status": status, "finished_at": UtcNow(), "wait_reason": None}
    else:
        changes |= canceled()
    return changes, [attempt_row(lease, error, FailureCause.LOST, text) for lease in leases]
