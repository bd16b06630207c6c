"""What became of a lease by a try whose commit nobody answered: it may have been done, and must not be called lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from jobqueue.db.retry import retry_transient
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions.leases import Lease

#: how a lease ends without a charge
UNCHARGED = (Job.Status.READY, Job.Status.CANCELED)


def ended_uncharged(leases: Collection[Lease], *, using: str) -> dict[int, Job.Status]:
    """Those of `leases` that ended without a charge, and how: READY again, or CANCELED.

    Only their holder, and an operator who releases them, ends leases so; whoever fails or reaps one leaves a record of
    the attempt, and an ack leaves DONE.
    """
    fences = {lease.job_id: lease.fence for lease in leases}
    rows = Job.objects.using(using).filter(pk__in=list(fences)).values_list("pk", "status", "fence")
    states: list[tuple[int, int, int]] = retry_transient(partial(list, rows), using=using)
    charged = charged_fences(leases, using=using)
    found: dict[int, Job.Status] = {}
    for job_id, status, fence in states:
        if (job_id, fences[job_id]) in charged or fence < fences[job_id]:
            continue
        if fence > fences[job_id]:
            # Somebody has claimed it since, so it was READY.
            found[job_id] = Job.Status.READY
        elif status in UNCHARGED:
            found[job_id] = Job.Status(status)
    return found


def charged_fences(leases: Iterable[Lease], *, using: str) -> set[tuple[int, int]]:
    """(job id, fence) of those of `leases` of which a failed attempt is on record."""
    wanted = {(lease.job_id, lease.fence) for lease in leases}
    rows = JobAttempt.objects.using(using).filter(job_id__in=[job_id for job_id, _ in wanted])
    known: set[tuple[int, int]] = retry_transient(partial(set, rows.values_list("job_id", "fence")), using=using)
    return wanted & known
