"""Reading FAILED jobs: those that match, and the next ones in the order of their ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models.lookups import Exact

from jobqueue.db import vendor
from jobqueue.db.expressions import Unindexed
from jobqueue.db.prepared import first_rows
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet


def dead_rows(using: str, wanted: Mapping[str, Any]) -> JobQuerySet:
    """The FAILED jobs that match."""
    if "job_ids" in wanted:
        rows: JobQuerySet = Job.objects.using(using).dead().filter(pk__in=wanted["job_ids"])
    elif "queue" in wanted and vendor(using).indexes_end_with_key:
        rows = vendor(using).walk_by(Job.objects.using(using).dead(), "ix_pick")
    else:
        rows = _all_dead(using)
    return rows.filter(**{column: value for column, value in wanted.items() if column != "job_ids"})


def next_dead_ids(
    using: str, wanted: Mapping[str, Any], *, after_id: int, until_id: int, read_max: int, most: int
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
