"""A copy of a job that has ended."""

from __future__ import annotations

from functools import partial

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.marks import CALLBACK, MEMBER, PARENT
from jobqueue.models import Job, JobTag
from jobqueue.payload import JSON, encode
from jobqueue.producer.enqueueing import add
from jobqueue.producer.insert import NewJob
from jobqueue.validation import check_id

_ANY_BYTES = 1 << 62
_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


def run_again(job_id: int | str, *, using: str | None = None) -> int:
    """Enqueue a copy of a job that has ended, due now; its id. The old job stays as it is.

    The copy has its queue, payload, task, options, priority, tags, ordering and concurrency key, and all attempts; it
    has no dedupe key and does not expire. Raises InvalidValue for a job that does not exist or has not ended,
    InvalidType, QueueFull before anything is written.
    """
    number, alias = check_id(job_id), alias_of(using)
    with explain_missing_table(alias):
        job: Job | None = retry_transient("enqueue", Job.objects.using(alias).filter(pk=number).first, using=alias)
    if job is None:
        raise InvalidValue(f"there is no job {number} in the database {alias!r}. Nothing was written; check the id.")
    if job.status not in _ENDED:
        raise InvalidValue(
            f"job {number} has not ended: it is {Job.Status(job.status).name}. Nothing was written; cancel it "
            "first, or wait for its end."
        )
    tags = JobTag.objects.using(alias).filter(job_id=number).order_by("pk").values_list("tag", flat=True)
    found = retry_transient("enqueue", partial(tuple, tags), using=alias)
    return add(_copy(job, found), using=alias)


def _copy(job: Job, tags: tuple[str, ...]) -> NewJob:
    options: JSON = job.options
    if isinstance(options, dict):
        # The copy is no member of a group.
        options = {name: value for name, value in options.items() if name not in (MEMBER, CALLBACK, PARENT)} or None
    if isinstance(options, dict) and "first_due" in options:
        # The time within which it may be retried begins anew.
        options = options | {"first_due": [None, 0]}
    return NewJob(
        queue=job.queue,
        payload=_encoded(job.payload),
        priority=job.priority,
        max_attempts=job.allowance or job.max_attempts,
        task=job.task,
        lease_seconds=job.lease_seconds,
        options=None if options is None else _encoded(options),
        ordering_key=job.ordering_key,
        concurrency_key=job.concurrency_key,
        dependency=job.dependency,
        tags=tags,
    )


def _encoded(value: JSON) -> Encoded:
    # Whatever the limit is now: it has been stored once.
    return Encoded(encode(value, max_bytes=_ANY_BYTES, what="the payload of the old job"))
