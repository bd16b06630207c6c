"""What people do to many jobs at once, by a filter, in bounded transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypedDict, Unpack

from django.db.models import Q

from jobqueue.base.validation import (
    check_ids,
    check_instant,
    check_int,
    check_queue,
    check_tag,
    check_text,
    did_you_mean,
)
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.retry import Verb, retry_transient
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.transitions.operator import cancel_each, discard_each, retry_each

#: jobs of one transaction
CHUNK = 100


class Filters(TypedDict, total=False):
    """Which jobs: those for which all of these hold. None does not count."""

    queue: str | None
    task: str | None  # the path of a task, "app.tasks.charge"
    tag: str | None
    status: int | str | None  # a Job.Status, or its name as commands write it, of those that the verb changes
    job_ids: Iterable[int | str] | None  # at most 10000
    created_before: datetime | None  # an aware datetime
    everything: bool  # True: all that the verb can change, if nothing else is given
    limit: int | None  # at most so many jobs are looked at, the oldest ones


def cancel_many(*, using: str | None = None, **filters: Unpack[Filters]) -> int:
    """cancel() of each READY or PROCESSING job of the filter; how many were canceled, or asked to stop.

    In transactions of 100 jobs, oldest first; in a caller's transaction, all in that. Jobs that are added meanwhile are
    left alone. Raises InvalidValue and InvalidType before anything is written; without a filter, everything=True is
    needed.
    """
    return _each("cancel", cancel_each, (Job.Status.READY, Job.Status.PROCESSING), filters, using)


def discard_many(*, using: str | None = None, **filters: Unpack[Filters]) -> int:
    """discard() of each READY or FAILED job of the filter; how many were. Otherwise as cancel_many()."""
    return _each("discard", discard_each, (Job.Status.READY, Job.Status.FAILED), filters, using)


def retry_many(*, using: str | None = None, **filters: Unpack[Filters]) -> int:
    """retry() of each FAILED or CANCELED job of the filter; how many are READY again. Otherwise as cancel_many().

    Those whose dedupe key another live job holds are left alone, and not counted.
    """
    return _each("retry", retry_each, (Job.Status.FAILED, Job.Status.CANCELED), filters, using)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Filters that were checked."""

    rows: JobQuerySet
    still: Q  # of the row of each, when it is locked
    limit: int | None


def _each(verb: Verb, change: Callable[..., int], states: Sequence[int], filters: Filters, using: str | None) -> int:
    alias = alias_of(using)
    chosen = _chosen(verb, filters, states, alias)
    with explain_missing_table(alias):
        newest = Job.objects.using(alias).order_by("-pk").values_list("pk", flat=True)[:1]
        until = next(iter(retry_transient(verb, partial(list, newest), using=alias)), 0)
    last, seen, count = 0, 0, 0
    while True:
        most = CHUNK if chosen.limit is None else min(CHUNK, chosen.limit - seen)
        ahead = chosen.rows.filter(pk__gt=last, pk__lte=until).order_by("pk").values_list("pk", flat=True)[:most]
        ids: list[int] = retry_transient(verb, partial(list, ahead), using=alias) if most else []
        if not ids:
            return count
        # Others may have changed a job since it was read.
        count += change(ids, using=alias, only=chosen.still)
        last, seen = ids[-1], seen + len(ids)


def _chosen(verb: str, filters: Filters, states: Sequence[int], using: str) -> _Chosen:
    known = Filters.__annotations__
    for name in filters:
        if name not in known:
            raise InvalidType(
                f"{verb}_many() has no filter {name!r}{did_you_mean(name, known)}. Nothing was written; the filters "
                f"are {', '.join(sorted(known))}."
            )
    given = {
        name: _by_name(value, states) if name == "status" else value
        for name, value in filters.items()
        if value is not None and name not in ("limit", "everything")
    }
    everything = filters.get("everything", False)
    if not isinstance(everything, bool):
        raise InvalidType(f"everything must be True or False, got {everything!r:.40}. Nothing was written.")
    if bool(given) == everything:
        raise InvalidValue(
            f"{verb}_many() takes a filter, or everything=True, and not both. Nothing was written; give a queue, task, "
            "tag, status, job_ids or created_before."
        )
    limit = filters.get("limit")
    still = Q(status__in=[int(state) for state in states])
    rows: JobQuerySet = Job.objects.using(using).all()
    for name, value in given.items():
        if name == "tag":
            rows = rows.tagged(check_tag(value))
        elif name == "job_ids":
            rows = rows.filter(pk__in=check_ids(value))
        else:
            still &= _condition(name, value, states)
    return _Chosen(rows.filter(still), still, None if limit is None else check_int(limit, "limit", 1))


def _condition(name: str, value: object, states: Sequence[int]) -> Q:
    if name == "queue":
        return Q(queue=check_queue(value))
    if name == "task":
        return Q(task=check_text(value, "task"))
    if name == "created_before":
        return Q(created_at__lt=check_instant(value, name))
    if value not in states:
        allowed = ", ".join(Job.Status(state).name for state in states)
        raise InvalidValue(f"status must be one of {allowed}, got {value!r:.40}. Nothing was written.")
    return Q(status=value)


def _by_name(value: object, states: Sequence[int]) -> object:
    """The state of this name, in capitals or not; anything else as it is."""
    names = {Job.Status(state).name: state for state in states}
    return names.get(value.upper(), value) if isinstance(value, str) else value
