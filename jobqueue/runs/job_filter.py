"""Which jobs: the one language of bulk verbs and redrives, in which a run says it and stores it.

Names: state, queue, task, tag, cause, fingerprint, worker, job_ids, from_id. A job matches if all that is given holds.
Several fingerprints, or ids, have commas between them; from_id means the job with this id and those added later.
redrive() takes some of these names, one fingerprint, and ids as a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from django.db.models import Q
from django.db.models.lookups import Exact
from django.utils.translation import gettext_lazy as _

from jobqueue.base.validation import (
    TASK_CHARS,
    check_ids,
    check_queue,
    check_tag,
    check_text,
    check_worker,
    did_you_mean,
)
from jobqueue.db import vendor
from jobqueue.db.expressions import Unindexed
from jobqueue.db.prepared import first_rows
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures import FailureCause
from jobqueue.models import Job, JobTag
from jobqueue.models.job import JobQuerySet
from jobqueue.models.states import STATES, condition_of

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

#: fingerprints of one filter, and ids that a text names
FINGERPRINTS_MAX, NAMED_MAX = 100, 1000
_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.ASCII)


class DeadFilter(TypedDict, total=False):
    """The filter of a redrive: what was given."""

    fingerprint: str
    queue: str
    task: str
    cause: str
    job_ids: list[int]


def matching(
    filters: Mapping[str, object], using: str, *, above: int | None = None, up_to: int | None = None
) -> JobQuerySet:
    """The jobs that match all of `filters`, in no order; without filters all jobs.

    `above`, `up_to`: only ids in this range, which bounds what is read. Raises InvalidValue and InvalidType for unknown
    names and for values that no job can have.
    """
    rows: JobQuerySet = Job.objects.using(using).all()
    tags = JobTag.objects.using(using).all()
    if above is not None:
        rows, tags = rows.filter(pk__gt=above), tags.filter(job_id__gt=above)
    if up_to is not None:
        rows, tags = rows.filter(pk__lte=up_to), tags.filter(job_id__lte=up_to)
    for name, value in check_filters(filters).items():
        if name == "tag":
            # The range of ids here too, so that no other jobs of the tag are read.
            rows = rows.filter(pk__in=tags.filter(tag=value).values("job_id"))
        else:
            rows = rows.filter(FILTERS[name].condition(value))
    return rows


def condition(filters: Mapping[str, Any]) -> Q:
    """What is to be true of the locked row of a job that was found by these checked filters.

    Others may have changed the job since it was found; its id and its tags stay.
    """
    found = Q()
    for name, value in sorted(filters.items()):  # in one order, so that a server sees one statement
        if name not in ("tag", "job_ids", "from_id"):
            found &= FILTERS[name].condition(value)
    return found


def check_filters(filters: Mapping[str, object]) -> dict[str, Any]:
    """The filters, if all have known names and possible values. Raises InvalidValue, InvalidType."""
    found = {}
    for name, value in filters.items():
        if name not in FILTERS:
            raise InvalidValue(
                f"there is no filter {name[:40]!r} for many jobs{did_you_mean(name, FILTERS)}. Nothing was written; "
                f"the filters are {', '.join(FILTERS)}."
            )
        if not isinstance(value, str):
            raise InvalidType(f"{name} must be a text, got {type(value).__name__}. Nothing was written.")
        found[name] = FILTERS[name].check(value)
    return found


def check_dead_filter(
    *,
    fingerprint: str | None = None,
    queue: str | None = None,
    task: str | None = None,
    cause: str | None = None,
    job_ids: Iterable[int | str] | None = None,
) -> DeadFilter:
    """The values that were given. Raises InvalidValue or InvalidType for what no dead letter can have."""
    found = check_columns({"fingerprint": fingerprint, "queue": queue, "task": task, "cause": cause})
    if job_ids is not None:
        found["job_ids"] = check_ids(job_ids)
    return cast("DeadFilter", found)


def check_columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of columns, of filters that have an option, that were given (None: not). Raises as check_filters()."""
    found = {}
    for name, value in given.items():
        if value is not None:
            row = FILTERS[name]
            found[name] = (row.check_one or row.check)(value)
    return found


def check_fingerprint(given: str) -> str:
    """`given` if it is a fingerprint. Raises InvalidValue, InvalidType."""
    if not isinstance(given, str):
        raise InvalidType(f"fingerprint is a text, got {type(given).__name__}. Nothing was written.")
    if not is_fingerprint(given):
        raise InvalidValue(
            f"fingerprint={given[:40]!r} is not one: 16 hexadecimal digits, as fingerprints() and the admin show them. "
            "Nothing was written."
        )
    return given


def is_fingerprint(value: str) -> bool:
    """Whether a text has the form of one fingerprint."""
    return _FINGERPRINT.fullmatch(value) is not None


def ids_of(filters: Mapping[str, Any]) -> list[int] | None:
    """The jobs that checked filters name, in order; None if they name none."""
    return sorted({int(one) for one in filters["job_ids"].split(",")}) if "job_ids" in filters else None


def first_id_of(filters: Mapping[str, Any]) -> int:
    """The id from which on jobs can match these checked filters."""
    return int(filters.get("from_id", 0))


def _check_task(value: object) -> str:
    path = check_text(value, "task")
    if not 1 <= len(path) <= TASK_CHARS:
        raise InvalidValue(f"task has {len(path)} characters; allowed are 1 to {TASK_CHARS}. Nothing was written.")
    return path


def _one_of(name: str, value: object, known: list[str]) -> str:
    if value not in known:
        raise InvalidValue(
            f"{name} must be one of {', '.join(known)}, got {value!r:.80}{did_you_mean(value, known)}. "
            "Nothing was written."
        )
    return str(value)


def _check_state(value: str) -> str:
    return _one_of("state", value, [*STATES])


def _check_cause(value: object) -> str:
    found = value.lower() if isinstance(value, str) else value
    return _one_of("cause", found, [cause.value for cause in FailureCause])


def _check_fingerprints(value: str) -> str:
    marks = value.split(",")
    for one in marks:
        check_fingerprint(one)
    _check_number("fingerprint", len(marks), FINGERPRINTS_MAX)
    return value


def _check_named(value: str) -> str:
    ids = value.split(",")
    for one in ids:
        _check_id(one)
    _check_number("job_ids", len(ids), NAMED_MAX)
    return value


def _check_id(value: str) -> str:
    # BIGINT has 19 digits; not every number of so many fits.
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise InvalidValue(f"{value[:40]!r} is not the id of a job. Nothing was written.")
    return value


def _check_number(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidValue(f"{name} has {count:,} values; allowed are up to {most:,}. Nothing was written.")


def _cause(value: str) -> Q:
    """Why FAILED jobs failed; jobs that expired are CANCELED."""
    return Q(status=Job.Status.CANCELED if value == FailureCause.EXPIRED else Job.Status.FAILED, cause=value)


class Filter(NamedTuple):
    """How a text is checked, the condition on a job that it means, and the title of the filter.

    `option`: what `jobs list --help` says of the option of this name, which compares the column; None: no such option.
    """

    check: Callable[[str], str]
    condition: Callable[[str], Q]
    title: StrOrPromise
    option: tuple[str, str] | None = None  # its metavar, and its help
    check_one: Callable[[str], str] | None = None  # of the column's value, if `check` takes several


def _of_tag(value: str) -> Q:
    return Q(pk__in=JobTag.objects.filter(tag=value).values("job_id"))


#: by name, in the order in which people see them: bulk verbs, the admin and `jobs list` walk this table
FILTERS: dict[str, Filter] = {
    "state": Filter(_check_state, condition_of, _("state")),
    "queue": Filter(check_queue, lambda value: Q(queue=value), _("queue"), ("NAME", "jobs of this queue")),
    "task": Filter(_check_task, lambda value: Q(task=value), _("task"), ("PATH", "jobs of this task")),
    "tag": Filter(check_tag, _of_tag, _("tag")),
    "cause": Filter(
        _check_cause, _cause, _("cause of failure"), ("CAUSE", "failures of this cause, such as dependency")
    ),
    "fingerprint": Filter(
        _check_fingerprints,
        lambda value: Q(status=Job.Status.FAILED, fingerprint__in=value.split(",")),
        _("fingerprint of the failure"),
        ("F", "failures of this kind: see jobs list --groups"),
        check_fingerprint,
    ),
    "worker": Filter(check_worker, lambda value: Q(status=Job.Status.PROCESSING, locked_by=value), _("worker")),
    "job_ids": Filter(_check_named, lambda value: Q(pk__in=[int(one) for one in value.split(",")]), _("jobs")),
    "from_id": Filter(_check_id, lambda value: Q(pk__gte=int(value)), _("added since job")),
}


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
