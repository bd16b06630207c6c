"""What every verb does besides its own write: run_verb() retries the write and acts on its commit.

After the commit it promotes the next job of each ordering key, reports the leases that the write did not find, informs
the ack observer and sends the signals. A verb supplies its write and its signals, so it cannot forget the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import NamedTuple, TypeAlias

from django.db import connections, transaction
from django.dispatch import Signal

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_open_transaction, send_after_commit
from jobqueue.db.retry import Verb, retry_transient
from jobqueue.exceptions import LeaseLost
from jobqueue.gates.limits import slots_to_free
from jobqueue.gates.waiting import open_next
from jobqueue.grouping.ends import STATE_OF, outstanding_again
from jobqueue.grouping.members import group_of, is_parent
from jobqueue.models import Job, JobAttempt
from jobqueue.ordering.promote import promote_next
from jobqueue.requested import REQUESTED_ENDS, UNCHARGED
from jobqueue.signals import (
    RunOutcome,
    job_canceled,
    job_dead,
    job_done,
    job_failed,
    job_reaped,
)
from jobqueue.transitions.dependants import end_with_dependants
from jobqueue.transitions.leases import Lease, lost

#: signals about a run, which also say which attempt it was and in which worker
_OF_RUNS = (job_done, job_failed, job_dead, job_reaped, *(end.signal for end in REQUESTED_ENDS if end.signal))


class JobRef(NamedTuple):
    """A job that a verb changed without holding a lease on it."""

    job_id: int
    queue: str
    task: str | None
    ordering_key: bytes | None
    using: str


#: by new status, the jobs that a transaction has written; PROCESSING: they stay with their holder
Written: TypeAlias = Mapping[Job.Status, Sequence[Lease | JobRef]]
#: by new status, the signals to send for each job, with their own facts. job_canceled is always sent for CANCELED.
Signals: TypeAlias = Mapping[Job.Status, Sequence[tuple[Signal, Mapping[str, object]]]]
_CANCELED: Signals = {Job.Status.CANCELED: [(job_canceled, {})]}


class Portion(NamedTuple):
    """One transaction of a verb. `write` is called with the number of the try, 1 for the first."""

    using: str
    write: Callable[[int], Written]
    leases: Sequence[Lease] = ()  # those that `write` does not return are lost


class Settled(NamedTuple):
    """The result of a verb."""

    verb: Verb
    written: Written
    lost: list[Lease]

    def status(self) -> Job.Status:
        """The new status of the verb's only lease. Raises LeaseLost."""
        if self.lost:
            raise LeaseLost(self.lost[0].job_id, self.verb)
        (status,) = self.written
        return status


def run_verb(
    verb: Verb, portions: Iterable[Portion], signals: Signals, *, again: bool = False, counted_as: str | None = None
) -> Settled:
    """Write each portion in its own transaction, then do what must follow its commit.

    `again`: an earlier call may have been committed although it ended in an error, so the first try has number 2.
    `counted_as`: the verb that the observer of observe() is told instead.
    """
    written: dict[Job.Status, list[Lease | JobRef]] = defaultdict(list)
    gone: list[Lease] = []
    for using, write, leases in portions:
        tries = count(1 + again)
        if any(group_of(lease.options) for lease in leases):
            write = partial(_with_members, write, using)
        found = retry_transient(verb, lambda write=write, tries=tries: write(next(tries)), using=using)  # type: ignore[misc]
        # Before the next portion, whose write may fail.
        _promote(found, using)
        for status, jobs in found.items():
            written[status] += jobs
        ids = {job.job_id for jobs in found.values() for job in jobs}
        gone += [lease for lease in leases if lease.job_id not in ids]
    for lease in gone:
        lost(lease, verb)
    _announce(verb, written, signals, counted_as)
    return Settled(verb, written, gone)


def _with_members(write: Callable[[int], Written], using: str, tries: int) -> Written:
    """Write a portion whose leases have groups, and the ends of those members, in one transaction."""
    with vendor(using).transaction(connections[using]):
        found = write(tries)
        leases = [(lease, status) for status, some in found.items() for lease in some if isinstance(lease, Lease)]
        end_in_groups(((lease.job_id, lease.options, status) for lease, status in leases), using)
        return found


def end_in_groups(jobs: Iterable[tuple[int, JSON, Job.Status]], using: str) -> None:
    """Write the ends of those jobs that are members of groups, in the open transaction that has ended the jobs.

    `jobs`: id, options and new status of each; those that have not ended are left out. run_verb() calls it for leases.
    """
    ends: dict[int, dict[int, list[int]]] = {}
    parents: set[int] = set()
    for job_id, options, status in jobs:
        if status in STATE_OF and (group_id := group_of(options)) is not None:
            ends.setdefault(group_id, {}).setdefault(STATE_OF[status], []).append(job_id)
            if is_parent(options):
                parents.add(job_id)
    end_with_dependants(ends, parents, using)


def run_again_in_groups(jobs: Iterable[Job], using: str) -> None:
    """Note, in the open transaction that has made ended jobs READY, that those of groups are outstanding again."""
    found: dict[int, list[int]] = defaultdict(list)
    for job in jobs:
        if (group_id := group_of(job.options)) is not None:
            found[group_id].append(job.pk)
    for group_id, ids in sorted(found.items()):
        outstanding_again(ids, group_id, using)


def settled(written: Written, using: str) -> None:
    """What follows the commit of a claim, which ends expired jobs in the transaction that takes others."""
    _promote(written, using)
    _announce("claim", written, {})


def _promote(written: Written, using: str) -> None:
    ended = [job for status, jobs in written.items() if status != Job.Status.PROCESSING for job in jobs]
    promote_next([(job.queue, job.ordering_key) for job in ended if job.ordering_key is not None], using=using)
    open_next(slots_to_free([job for job in ended if isinstance(job, Lease)], using), using=using)


WrittenObserver: TypeAlias = Callable[[str, Written], None]
_written_observer: WrittenObserver | None = None


def observe(observer: WrittenObserver | None) -> None:
    """Call observer(verb, written) after each verb of this process from now on; None: call nobody.

    It must not use the database, nor raise. In a caller's transaction it is called before that is committed.
    """
    global _written_observer
    _written_observer = observer


def _announce(verb: str, written: Written, signals: Signals, counted_as: str | None = None) -> None:
    if _written_observer is not None:
        _written_observer(counted_as or verb, written)
    if _end_observer.get() is not None:
        for status, jobs in written.items():
            for job in jobs:
                _inform_end_observer(job, verb, status)
    for status, jobs in written.items():
        wanted = [(signal, facts) for signal, facts in (*signals.get(status, ()), *_CANCELED.get(status, ()))]
        wanted = [(signal, facts) for signal, facts in wanted if signal.receivers]
        for job in jobs if wanted else ():
            about: dict[str, object] = {"job_id": job.job_id, "queue": job.queue, "task": job.task}
            run = {"attempt": job.attempt, "worker": job.worker} if isinstance(job, Lease) else {}
            for signal, facts in wanted:
                more = {**about, **(run if signal in _OF_RUNS else {}), **facts}
                send_after_commit(signal, Job, using=job.using, **more)


EndObserver: TypeAlias = Callable[[Lease, RunOutcome], None]
_end_observer: ContextVar[EndObserver | None] = ContextVar("jobqueue_end_observer", default=None)
#: by new status, what a verb called by the job itself makes of its run
_OUTCOMES = {
    Job.Status.DONE: RunOutcome.OK,
    Job.Status.FAILED: RunOutcome.DEAD,
    Job.Status.CANCELED: RunOutcome.CANCELED,
}
#: by verb, the same for a job that is READY again
_READY_AGAIN = {"fail": RunOutcome.RETRY, "snooze": RunOutcome.SNOOZED, "reap": RunOutcome.LOST}


class observe_ends:
    """A `with` block: observer(lease, outcome) is called for each lease that code of this context has ended.

    A job may settle its own lease by a verb, and the worker must not settle that lease again.
    """

    __slots__ = ("_mark", "_observer")

    def __init__(self, observer: EndObserver) -> None:
        self._observer = observer

    def __enter__(self) -> None:
        self._mark = _end_observer.set(self._observer)

    def __exit__(self, *raised: object) -> None:
        _end_observer.reset(self._mark)


def _inform_end_observer(lease: Lease | JobRef, verb: str, status: Job.Status) -> None:
    """Now, or with the commit of the open transaction; not after a rollback."""
    observer = _end_observer.get()
    if observer is None or not isinstance(lease, Lease) or status is Job.Status.PROCESSING:
        return
    outcome = _OUTCOMES.get(status) or _READY_AGAIN.get(verb, RunOutcome.PARKED)
    if not in_open_transaction(lease.using):
        observer(lease, outcome)
    elif connections[lease.using].in_atomic_block:
        transaction.on_commit(partial(observer, lease, outcome), using=lease.using)
    # Else autocommit was turned off by hand, and Django does not see whether it is committed.


def ended_uncharged(leases: Collection[Lease], *, using: str) -> dict[int, Job.Status]:
    """The new status (READY or CANCELED) of those of `leases` that ended without using an attempt, by job id.

    For a write whose commit was not answered: it may have been done, and its lease must not be reported as lost. Only
    the holder and an operator's release end a lease so; fail and reap leave a JobAttempt, an ack leaves DONE.
    """
    fences = {lease.job_id: lease.fence for lease in leases}
    rows = Job.objects.using(using).filter(pk__in=list(fences)).values_list("pk", "status", "fence")
    states: list[tuple[int, int, int]] = retry_transient("settle", partial(list, rows), using=using)
    charged = charged_fences(leases, using=using)
    found: dict[int, Job.Status] = {}
    for job_id, status, fence in states:
        if (job_id, fences[job_id]) in charged or fence < fences[job_id]:
            continue
        if fence > fences[job_id]:
            # It was claimed since, so it was READY.
            found[job_id] = Job.Status.READY
        elif status in (Job.Status.READY, Job.Status.CANCELED):
            found[job_id] = Job.Status(status)
    return found


def charged_fences(leases: Iterable[Lease], *, using: str) -> set[tuple[int, int]]:
    """(job id, fence) of those of `leases` whose attempt is recorded as failed."""
    wanted = {(lease.job_id, lease.fence) for lease in leases}
    rows = JobAttempt.objects.using(using).filter(job_id__in=[job_id for job_id, _ in wanted])
    rows = rows.exclude(cause__in=UNCHARGED)
    known: set[tuple[int, int]] = retry_transient(
        "settle", partial(set, rows.values_list("job_id", "fence")), using=using
    )
    return wanted & known
