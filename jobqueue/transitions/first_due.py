"""When a job fell due for the first run of its life, which its options keep if it is limited in its retries.

That is a job whose task has retry_until_seconds, and from the first retry by hand on one that has a dependency. A life
begins with the enqueue and with each retry() by hand or redrive. Crashes and parking move run_at, and this stays.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from jobqueue.db.fields import Encoded
from jobqueue.exceptions import JobQueueError
from jobqueue.models import Job
from jobqueue.payload import JSON, encode
from jobqueue.transitions.leases import Lease
from jobqueue.validation import check_instant

#: in the options: [the instant, or null for created_at; the attempts of earlier lives]
FIRST_DUE = "first_due"
_BYTES_MAX = 16_384


class FirstDue(NamedTuple):
    """When the job of a lease fell due for the first run of this life."""

    instant: datetime
    attempts: int  # of earlier lives
    kept: bool  # False: its options do not tell, and this run is taken for the first one


def first_due(lease: Lease) -> FirstDue:
    """By the options of the row, in which plain SQL may have written anything."""
    try:
        instant, attempts = lease.options[FIRST_DUE]
        if 0 <= int(attempts) < lease.attempt:
            found = lease.created_at if instant is None else check_instant(datetime.fromisoformat(instant))
            return FirstDue(max(found, lease.created_at), int(attempts), True)
    except (TypeError, KeyError, ValueError, JobQueueError):
        pass
    return FirstDue(lease.run_at, lease.attempt - 1, False)


def is_first_run(lease: Lease) -> bool:
    """Whether no earlier run of this life has failed, as far as the row tells."""
    if lease.attempt == 1 or not isinstance(lease.options, dict):
        return lease.attempt == 1
    due = first_due(lease)
    return due.kept and lease.attempt == due.attempts + 1


def with_first_due(options: JSON, due: datetime | None, attempts: int) -> Encoded | None:
    """`options` with it; None: for them it is too long, and nothing is kept."""
    known = options if isinstance(options, dict) else {}
    kept = [None if due is None else due.isoformat(), attempts]
    try:
        return Encoded(encode(known | {FIRST_DUE: kept}, max_bytes=_BYTES_MAX, what="the options of the job"))
    except JobQueueError:
        return None


def begins_again(job: Job, now: Callable[[], datetime]) -> dict[str, object]:
    """The column to write when a job is retried by hand: its life begins `now`. {} if nothing limits its retries."""
    if job.dependency is None and not (isinstance(job.options, dict) and FIRST_DUE in job.options):
        return {}
    options = with_first_due(job.options, now(), job.attempts)
    return {} if options is None else {"options": options}
