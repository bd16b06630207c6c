"""The jobs of a bulk verb in the order of their ids, found in parts so small that no read takes long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from django.db.models import BigIntegerField, Min, Q, Value
from django.db.models.lookups import GreaterThan

from jobqueue.db import vendor
from jobqueue.db.expressions import Behind, Slot, Unestimated, Unindexed
from jobqueue.db.fields import JobIdField, NameField
from jobqueue.db.prepared import Prepared, first_rows, lowest_ids, prepare_rows
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout
from jobqueue.models import Job, JobTag
from jobqueue.models.job import JobQuerySet
from jobqueue.runs.job_filter import check_filters, first_id_of, ids_of, in_order, matching
from jobqueue.runs.verbs import by_status, changeable, check_verb, quiet_since, status_of

#: ids of one read: it looks at no more rows than that, however few of them match
WINDOW = 5000
#: the least jobs of a tag that one read looks at; from there to PART, as many as are asked for
TAGGED_MIN = 250
#: how many windows one call reads in which nothing matches, and for how long
EMPTY_MAX, SECONDS = 16, 0.1
#: of one job; it is given far fewer
TAGS_READ = 1000
#: the most jobs of a tag that one read looks at
PART = 1000


def next_ids(
    verb: str,
    filters: Mapping[str, str],
    *,
    after_id: int,
    until_id: int,
    most: int,
    using: str,
    since: datetime | None = None,
) -> tuple[list[int], int]:
    """Up to `most` ids of jobs that match and that `verb` can change, in order, and the id up to which was looked.

    They are above after_id, and at most until_id. `since`: without those that quiet_since() leaves out. Ends after
    EMPTY_MAX windows without such jobs, or after SECONDS, with those that it has found by then.
    """
    condition = changeable(verb, filters)
    if since is not None:
        condition &= quiet_since(verb, since)
    if (named := ids_of(filters)) is not None:
        return _of_named(named, filters, condition, after_id, until_id, most, using)
    found, is_gap, empty, ends_at = list[int](), True, 0, time.monotonic() + SECONDS
    at, status, tag = max(after_id, first_id_of(filters) - 1), status_of(verb, filters), filters.get("tag")
    while at < until_id and empty < EMPTY_MAX and time.monotonic() < ends_at:
        # Behind a window with matching jobs the next ones follow at once, as a rule.
        if is_gap and (status is not None or tag is None):
            at = _before_next(status, at, until_id, using)
        if tag is None:
            up_to = min(at + WINDOW, until_id)
            rows = vendor(using).within_ids(matching(filters, using, above=at, up_to=up_to), at, up_to)
        else:
            size = min(max(most, TAGGED_MIN), PART)
            ids = tagged_ids(tag, above=at, up_to=until_id, most=size, using=using)
            up_to = ids[-1] if len(ids) == size else until_id
            rows = among(ids, filters, using)
        found += (more := _ids(rows.filter(condition), most - len(found)))
        if len(found) == most:
            return found, found[-1]
        at, is_gap = up_to, not more
        empty += is_gap
    return found, at


def _of_named(
    ids: list[int], filters: Mapping[str, str], condition: Q, after_id: int, until_id: int, most: int, using: str
) -> tuple[list[int], int]:
    """The same of filters that name the jobs, which are few."""
    first = max(after_id + 1, first_id_of(filters))
    wanted = [one for one in ids if first <= one <= until_id]
    if "tag" in filters:
        wanted = with_tag(wanted, filters["tag"], using)
    found = _ids(among(wanted, filters, using).filter(condition), most)
    return found, found[-1] if len(found) == most else until_id


def among(ids: list[int], filters: Mapping[str, str], using: str) -> JobQuerySet:
    """Those of these jobs that match the filters which were not used to find them."""
    # SQLite would read a whole range of ids rather than a few of them.
    rest = {name: value for name, value in filters.items() if name not in ("tag", "job_ids", "from_id")}
    rows = matching(rest, using)
    return vendor(using).of_ids(rows, [*dict.fromkeys(ids)]) if ids else rows.none()


def _ids(rows: JobQuerySet, most: int) -> list[int]:
    return list(rows.order_by("pk").values_list("pk", flat=True)[:most])


def _before_next(status: int | None, after_id: int, until_id: int, using: str) -> int:
    """The id before the next job of this status (None: of any status); until_id if there is no such job."""
    jobs: JobQuerySet = Job.objects.using(using)
    if status == Job.Status.PROCESSING:
        running = vendor(using).walk_by(jobs.filter(status=status), "ix_lease")
        # Not by the plain id: PostgreSQL would look for the first one among all jobs above after_id.
        number = Unindexed("pk", output_field=BigIntegerField())
        first = running.filter(GreaterThan(number, after_id)).aggregate(first=Min(number))["first"]
    else:
        rows = in_order(using) if status == Job.Status.FAILED else jobs.order_by("pk")
        first = next(iter(rows.filter(pk__gt=after_id).values_list("pk", flat=True)[:1]), None)
    return until_id if first is None else min(first - 1, until_id)


def tagged_ids(tag: str, *, above: int, up_to: int, most: int, using: str) -> list[int]:
    """The first `most` ids above the one and up to the other of jobs with this tag, in order."""
    rows = JobTag.objects.using(using)
    if vendor(using).compares_rows:
        # No index but ix_tag has this order: where the statistics take the tag for common, PostgreSQL would walk by
        # another one through the tags of all jobs.
        name = Value(tag, output_field=NameField())
        first, end = (Value(number, output_field=JobIdField()) for number in (above, up_to + 1))
        rows = rows.filter(Behind("tag", "job_id", name, first), Behind(name, end, "tag", "job_id"))
        rows = rows.order_by("tag", "job_id")
    else:
        rows = rows.filter(tag=tag, job_id__gt=above, job_id__lte=up_to).order_by("job_id")
    return [job_id for (job_id,) in first_rows(vendor(using).walk_by(rows, "ix_tag").values_list("job_id"), most)]


def tagged_parts(tag: str, *, up_to: int, using: str) -> Iterator[list[int]]:
    """The ids of all jobs with this tag up to one, in order, PART at a time."""
    at = 0
    while ids := tagged_ids(tag, above=at, up_to=up_to, most=PART, using=using):
        yield ids
        if len(ids) < PART:
            return
        at = ids[-1]


def with_tag(ids: Sequence[int], tag: str, using: str) -> list[int]:
    """Those of some ids whose jobs have this tag, in order."""
    # By the jobs, which have few tags each, and not by the tag, which many other jobs may have; with a seek for each,
    # because of a small table, or what it takes for one, PostgreSQL would read all rows for a long IN.
    rows = _tags(using).seek_each([{"job": job_id} for job_id in ids]) if ids else []
    return sorted({int(job_id) for job_id, one in rows if one == tag})


@cache
def _tags(using: str) -> Prepared:
    rows = JobTag.objects.using(using).filter(job_id=Slot("job", JobIdField()))
    return prepare_rows(vendor(using).walk_by(rows, "ix_tag_job").values_list("job_id", "tag")[:TAGS_READ])


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
