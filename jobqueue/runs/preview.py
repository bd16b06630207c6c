"""What a bulk verb would do: how many jobs it would change, and some of these. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jobqueue.db import vendor
from jobqueue.db.expressions import Unestimated
from jobqueue.db.prepared import lowest_ids
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.runs.job_filter import check_filters, matching
from jobqueue.runs.verbs import by_status, changeable, check_verb
from jobqueue.runs.walking import among, next_ids, tagged_parts

#: jobs are counted up to this number
MATCHED_MAX = 10_000
#: of the count
COUNT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Preview:
    """`matched` is MATCHED_MAX if there are so many or more, and None if counting took too long."""

    matched: int | None
    until_id: int  # the newest job; those added later are not touched
    first: list[Job]  # the oldest that match; where not all are counted, some of them

    @property
    def is_capped(self) -> bool:
        """Whether there may be more than `matched`."""
        return self.matched is None or self.matched >= MATCHED_MAX


def preview(verb: str, filters: Mapping[str, str], *, first: int, using: str, until_id: int | None = None) -> Preview:
    """Count the jobs that match and that `verb` can change, and read up to `first` of them. Raises InvalidValue."""
    wanted = check_filters(filters)
    check_verb(verb, wanted)
    until = newest_id(using) if until_id is None else until_id
    matched, ids = _counted(verb, wanted, until, first, using)
    if matched is None:
        ids, _ = next_ids(verb, wanted, after_id=0, until_id=until, most=first, using=using) if first else ([], 0)
    rows = Job.objects.using(using).filter(pk__in=ids).order_by("pk")
    jobs = list(rows.only("pk", "queue", "task", "status", "gate", "run_at", "lock_until")) if ids else []
    return Preview(matched, until, jobs)


def count(verb: str, filters: Mapping[str, str], until_id: int, using: str) -> int | None:
    """How many match, up to MATCHED_MAX; None if that takes longer than COUNT_SECONDS."""
    return _counted(verb, filters, until_id, 0, using)[0]


def _counted(
    verb: str, filters: Mapping[str, str], until_id: int, first: int, using: str
) -> tuple[int | None, list[int]]:
    """The count, and the lowest ids of those that were counted."""
    number, ids = 0, list[int]()
    try:
        with time_limit(COUNT_SECONDS, using=using) as limit:
            for rows in _sets(verb, filters, until_id, using):
                found, lowest = lowest_ids(rows[: MATCHED_MAX - number], first)
                number, ids = number + found, ids + lowest
                if number >= MATCHED_MAX:
                    break
                limit.check()
    except StatementTimeout:
        return None, []
    return number, sorted(ids)[:first]


def _sets(verb: str, filters: Mapping[str, str], until_id: int, using: str) -> Iterator[JobQuerySet]:
    """The jobs that match and that `verb` can change, in disjoint parts."""
    if filters.keys() & {"job_ids", "worker"}:
        yield matching(filters, using, up_to=until_id).filter(changeable(verb, filters)).only("pk")
    elif "tag" in filters:
        # Not by one statement: with old statistics PostgreSQL would read all jobs of the tag for each job of a status.
        for ids in tagged_parts(filters["tag"], up_to=until_id, using=using):
            yield among(ids, filters, using).filter(changeable(verb, filters)).only("pk")
    else:
        yield from _by_index(verb, filters, until_id, using)


def _by_index(verb: str, filters: Mapping[str, str], until_id: int, using: str) -> Iterator[JobQuerySet]:
    """The jobs of each status, in the order of an index, so that the limit ends the walk through it.

    Without that order PostgreSQL may read the table from its beginning until it has found so many.
    """
    for status, condition, rest in by_status(verb, filters):
        queue = rest.pop("queue", None)
        rows = matching(rest, using, up_to=until_id).filter(condition, status=Unestimated(status)).only("pk")
        if queue is None:
            yield vendor(using).walk_by(rows.order_by("lock_until"), "ix_lease")
        else:
            rows = rows.filter(queue=Unestimated(queue)).order_by("gate", "priority", "run_at", "id")
            yield vendor(using).walk_by(rows, "ix_pick")


def newest_id(using: str) -> int:
    """The highest id of a job; 0 if there is none."""
    newest = Job.objects.using(using).order_by("-pk").values_list("pk", flat=True)[:1]
    return next(iter(newest), 0)
