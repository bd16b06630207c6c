"""The jobs of a tag in the order of their ids: the tag's own index has them, however many other jobs there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from django.db.models import Value

from jobqueue.db import vendor
from jobqueue.db.expressions import Behind, Slot
from jobqueue.db.fields import JobIdField, NameField
from jobqueue.db.parts import first_rows
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.models import JobTag

#: of one job; it is given far fewer
TAGS_READ = 1000
#: the most jobs of a tag that one read looks at
PART = 1000


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
