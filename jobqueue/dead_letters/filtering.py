"""Which dead letters: by fingerprint, queue, task, cause or id."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypedDict

from django.db.models.lookups import Exact

from jobqueue.db import vendor
from jobqueue.db.expressions import Unindexed
from jobqueue.db.parts import first_rows
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures import FailureCause
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.validation import TASK_CHARS, check_id, check_queue, check_text, did_you_mean

#: job ids of one filter
IDS_MAX = 10_000
_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.ASCII)


class Filter(TypedDict, total=False):
    """What was given; a job matches if it matches all of it."""

    fingerprint: str
    queue: str
    task: str
    cause: str
    job_ids: list[int]


def check_filter(
    *,
    fingerprint: str | None = None,
    queue: str | None = None,
    task: str | None = None,
    cause: str | None = None,
    job_ids: Iterable[int | str] | None = None,
) -> Filter:
    """The values that were given. Raises InvalidValue or InvalidType for what no dead letter can have."""
    found = Filter()
    if fingerprint is not None:
        found["fingerprint"] = check_fingerprint(fingerprint)
    if queue is not None:
        found["queue"] = check_queue(queue)
    if task is not None:
        found["task"] = _task(task)
    if cause is not None:
        found["cause"] = _cause(cause)
    if job_ids is not None:
        found["job_ids"] = _ids(job_ids)
    return found


def check_fingerprint(given: str) -> str:
    """`given` if it is a fingerprint. Raises InvalidValue, InvalidType."""
    if not isinstance(given, str):
        raise InvalidType(f"fingerprint is a text, got {type(given).__name__}. Nothing was written.")
    if not _FINGERPRINT.fullmatch(given):
        raise InvalidValue(
            f"fingerprint={given[:40]!r} is not one: 16 hexadecimal digits, as fingerprints() and the admin show them. "
            "Nothing was written."
        )
    return given


def dead_rows(using: str, wanted: Filter) -> JobQuerySet:
    """The FAILED jobs that match."""
    if "job_ids" in wanted:
        rows: JobQuerySet = Job.objects.using(using).dead().filter(pk__in=wanted["job_ids"])
    elif "queue" in wanted and vendor(using).indexes_end_with_key:
        rows = vendor(using).walk_by(Job.objects.using(using).dead(), "ix_pick")
    else:
        rows = _all_dead(using)
    return rows.filter(**{column: value for column, value in wanted.items() if column != "job_ids"})


def next_ids(
    using: str, wanted: Filter, *, after_id: int, until_id: int, read_max: int, most: int
) -> tuple[list[int], int]:
    """Up to `most` ids of dead letters that match, in order, and the id up to which they have been looked for.

    They are above after_id, and at most until_id. Reads at most `read_max` dead letters, whether these match or not.
    """
    columns = {column: value for column, value in wanted.items() if column != "job_ids"}
    ids = wanted.get("job_ids")
    if ids is None:
        rows = in_order(using).filter(pk__gt=after_id, pk__lte=until_id)
    else:
        ids = [job_id for job_id in ids if after_id < job_id <= until_id][:read_max]
        rows = Job.objects.using(using).dead().filter(pk__in=ids).order_by("pk")
    # The database does not compare: it must stop after so many rows, however few match.
    read = first_rows(rows.values_list("pk", *columns), read_max)
    found = [row[0] for row in read if row[1:] == tuple(columns.values())]
    if len(found) > most:
        return found[:most], found[most - 1]
    looked_at = [row[0] for row in read] if ids is None else ids
    return found, looked_at[-1] if len(looked_at) == read_max else until_id


def in_order(using: str) -> JobQuerySet:
    """The FAILED jobs by their ids: reading the next ones above or below an id is a seek, and reads no others."""
    # By the id alone: in the words of ix_lease, MariaDB would sort all of them.
    return _all_dead(using).order_by("pk")


def _all_dead(using: str) -> JobQuerySet:
    """The FAILED jobs, which an index has: they are few beside those of the table."""
    jobs: JobQuerySet = Job.objects.using(using)
    if vendor(using).indexes_end_with_key:
        # They have no lease, so within them ix_lease has the order of ids.
        rows: JobQuerySet = vendor(using).walk_by(jobs.dead().filter(lock_until__isnull=True), "ix_lease")
        return rows
    # ix_dead has exactly these rows, and no other index serves a condition in this form: of another one PostgreSQL may
    # think that reading the whole table is cheaper.
    return jobs.filter(Exact(Unindexed("status"), int(Job.Status.FAILED)))


def _task(task: str) -> str:
    path = check_text(task, "task")
    if not 1 <= len(path) <= TASK_CHARS:
        raise InvalidValue(f"task has {len(path)} characters; allowed are 1 to {TASK_CHARS}. Nothing was written.")
    return path


def _cause(cause: str) -> str:
    names = [known.value for known in FailureCause]
    found = cause.lower() if isinstance(cause, str) else cause
    if found not in names:
        raise InvalidValue(
            f"cause must be one of {', '.join(names)}, got {cause!r:.80}{did_you_mean(cause, names)}. Nothing was read."
        )
    return found


def _ids(given: Iterable[int | str]) -> list[int]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidType(f"job_ids must be a list of job ids, got {type(given).__name__}. Nothing was written.")
    ids = sorted({check_id(job_id) for job_id in given})
    if len(ids) > IDS_MAX:
        raise InvalidValue(
            f"job_ids has {len(ids)} ids, {IDS_MAX} are the most. Nothing was written; give a fingerprint, queue, task "
            "or cause, or call it for a part of them."
        )
    return ids
