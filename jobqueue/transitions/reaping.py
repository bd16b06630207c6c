"""PROCESSING -> READY or FAILED when a lease ran out: its holder died, froze or lost the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from django.db import connections
from django.db.models import Case, CharField, Value, When

from jobqueue.base.validation import check_int
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import JobLost
from jobqueue.failures import FailureCause, fingerprint
from jobqueue.models import Job, JobAttempt
from jobqueue.models.job import HELD_REASON
from jobqueue.models.rows import in_state
from jobqueue.signals import job_dead, job_parked, job_reaped
from jobqueue.transitions.failing import (
    AfterCrash,
    after_crash,
    attempt_row,
    failed_columns,
    failure_of,
    losses_in,
    one_more,
)
from jobqueue.transitions.leases import Lease, canceled, lease_of
from jobqueue.transitions.verb import Portion, Signals, Written, charged_fences, end_in_groups, run_verb

_SIGNALS: Signals = {
    Job.Status.READY: [(job_reaped, {})],
    Job.Status.FAILED: [(job_reaped, {}), (job_dead, {"cause": FailureCause.LOST})],
    Job.Status.CANCELED: [(job_reaped, {})],
}
_READY_AGAIN = "its last worker's lease ran out"


class _Ended(defaultdict[Job.Status, list[Lease]]):
    """What one try made of leases, by the new status."""

    def __init__(self) -> None:
        super().__init__(list)
        self.held: list[Lease] = []  # those of READY that wait behind the gate of on_crash


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
    tries: list[_Ended] = []
    written = run_verb("reap", [Portion(alias, partial(_write, limit, alias, tries))], _SIGNALS).written
    _announce_held(written, tries)
    sizes = {status: len(leases) for status, leases in written.items()}
    return Reaped(
        requeued=sizes.get(Job.Status.READY, 0),
        dead=sizes.get(Job.Status.FAILED, 0),
        canceled=sizes.get(Job.Status.CANCELED, 0),
    )


def _announce_held(written: Written, tries: Sequence[_Ended]) -> None:
    """job_parked for those that on_crash holds; READY is the status of the others too."""
    held = {(lease.job_id, lease.fence) for ended in tries for lease in ended.held}
    for lease in written.get(Job.Status.READY, ()) if held else ():
        if isinstance(lease, Lease) and (lease.job_id, lease.fence) in held:
            about = {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task}
            send_after_commit(job_parked, Job, using=lease.using, **about, reason=HELD_REASON)


def _write(limit: int, using: str, earlier: list[_Ended], tries: int) -> Written:
    """What became of the leases that ended, by `earlier` tries too: one may have been committed without an answer."""
    ended = _Ended()
    before = _committed(earlier, using)
    found = vendor(using)
    with found.transaction(connections[using]):
        lapsed = found.force_index(Job.objects.using(using).lapsed().order_by("lock_until"), "ix_lease")
        rows = found.lock_rows(lapsed.defer("payload", "result", "last_error"), limit)
        groups: dict[tuple[AfterCrash | None, str], list[Lease]] = defaultdict(list)
        for job in rows:
            lease = lease_of(job, using)
            asked = job.cancel_requested_at is not None
            then = None if asked else after_crash(losses_in(job, using), lease)
            groups[then, job.locked_by or ""].append(lease)
        for (then, worker), leases in groups.items():
            status, changes, history = _lost(then, worker, leases)
            ids = [lease.job_id for lease in leases]
            # Status and lapse again in the WHERE: not every database kept these rows locked since they were read.
            in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_until__lt=UtcNow()).update(**changes)
            JobAttempt.objects.using(using).bulk_create(history, batch_size=500)
            ended[status] += leases
            if then is AfterCrash.HOLD:
                ended.held += leases
        end_in_groups(((one.job_id, one.options, status) for status, some in ended.items() for one in some), using)
        earlier.append(ended)
    return {status: before[status] + ended[status] for status in {**before, **ended}}


def _committed(earlier: Sequence[_Ended], using: str) -> _Ended:
    """Those of `earlier` tries that are on record."""
    found = _Ended()
    for ended in earlier:
        charged = charged_fences(chain.from_iterable(ended.values()), using=using) if ended else set()
        for status, leases in ended.items():
            found[status] += [lease for lease in leases if (lease.job_id, lease.fence) in charged]
    return found


def _lost(
    then: AfterCrash | None, worker: str, leases: Sequence[Lease]
) -> tuple[Job.Status, dict[str, object], list[JobAttempt]]:
    """The new status and columns of these jobs, whose leases were the worker's, and the attempts to record."""
    error = JobLost(
        f"the lease of worker {worker} ran out without an answer: the process died, froze or lost the database. "
        "The attempt counts; the job runs again while attempts are left."
    )
    failure = failure_of(error, leases[0])
    kinds = {lease.job_id: fingerprint(error, task=lease.task, queue=lease.queue) for lease in leases}
    changes: dict[str, object] = failed_columns(failure, one_more("attempts"))
    changes["fingerprint"] = _of_each(kinds)
    state: dict[str, Any] = canceled() if then is None else {"wait_reason": _READY_AGAIN} | then.changes()
    history = [attempt_row(lease, failure._replace(fingerprint=kinds[lease.job_id])) for lease in leases]
    return Job.Status(state["status"]), changes | state, history


def _of_each(kinds: Mapping[int, str]) -> Case | str:
    """The fingerprint of each row in one value: they differ by task."""
    ids: dict[str, list[int]] = defaultdict(list)
    for job_id, kind in kinds.items():
        ids[kind].append(job_id)
    if len(ids) == 1:
        return next(iter(ids))
    return Case(*(When(pk__in=found, then=Value(kind, CharField())) for kind, found in ids.items()))
