"""Redrives as callers see them: recorded, listed and stopped. Workers carry them out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, Max

from jobqueue.base.durations import parse_rate
from jobqueue.base.validation import check_id, check_int
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue, OutcomeUnknown
from jobqueue.models import Redrive
from jobqueue.runs import stepping
from jobqueue.runs.job_filter import DeadFilter, check_dead_filter, dead_rows

#: jobs of a canary
CANARY_MAX = 1000
#: redrives that redrives() returns
LISTED_MAX = 1000
DRY_RUN, BY_HAND = "dry run", "stopped by hand"


@dataclass(frozen=True, slots=True)
class Redriven:
    """A redrive, as far as it has come. Instants are aware."""

    id: int | None  # None: a dry run
    state: str  # "canary", "running", "done", "stopped"; "dry run"
    matched: int  # dead letters when it was recorded
    redriven: int = 0
    skipped: int = 0  # left as they are: no longer FAILED, or another live job has their dedupe key
    reason: str = ""  # why it was stopped
    filters: DeadFilter | None = None
    limit: int | None = None
    canary: int = 0
    per_second: float | None = None
    alone: bool = False  # its only job runs in a process of its own
    created_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def wanted(self) -> int:
        """How many jobs it is to retry: those that matched, up to the limit."""
        return self.matched if self.limit is None else min(self.matched, self.limit)


def redrive(
    *,
    fingerprint: str | None = None,
    queue: str | None = None,
    task: str | None = None,
    cause: str | None = None,
    job_ids: Iterable[int | str] | None = None,
    everything: bool = False,
    limit: int | None = None,
    dry_run: bool = False,
    canary: int = 0,
    rate: str | None = None,
    using: str | None = None,
) -> Redriven:
    """Record that the dead letters which match are to be retried; workers do it, oldest first, within about a second.

    A job must match all that is given; without a filter everything=True is needed. Only jobs that are FAILED now are
    touched, each once. `limit`: at most so many; `rate`: "50/s". `canary`: so many first, and the others only after
    each of those has passed its next attempt; the first one that fails stops the redrive. `dry_run` only counts.
    In a transaction it is recorded with the commit. Raises InvalidValue, also if one with the same filter is under way.
    """
    alias = alias_of(using)
    wanted = check_dead_filter(fingerprint=fingerprint, queue=queue, task=task, cause=cause, job_ids=job_ids)
    _check_scope(wanted, everything)
    run = Redrive(
        phase=Redrive.State.CANARY if check_int(canary, "canary", 0, CANARY_MAX) else Redrive.State.RUNNING,
        filters=wanted,
        job_limit=None if limit is None else check_int(limit, "limit", 1),
        per_second=None if rate is None else parse_rate(rate),
        canary=canary,
    )
    with explain_missing_table(alias):
        found = dead_rows(alias, wanted).aggregate(count=Count("pk"), newest=Max("pk"))
        run.matched, run.until_id = found["count"], found["newest"] or 0
        if dry_run:
            return replace(redriven_of(run), state=DRY_RUN, created_at=None)
        if not run.matched:
            run.end(Redrive.State.DONE)
        _record(run, alias)
        return redriven_of(Redrive.objects.using(alias).get(pk=run.pk))


def redrives(*, limit: int = 100, using: str | None = None) -> list[Redriven]:
    """The newest redrives, newest first, those that have ended included."""
    check_int(limit, "limit", 1, LISTED_MAX)
    alias = alias_of(using)
    with explain_missing_table(alias):
        return [redriven_of(run) for run in Redrive.objects.using(alias).order_by("-pk")[:limit]]


def stop(redrive_id: int | str, *, using: str | None = None) -> bool:
    """End a redrive: no job is retried by it after the commit. False if it does not exist or has ended."""
    number, alias = check_id(redrive_id, "a redrive's id"), alias_of(using)
    return stepping.stop(number, BY_HAND, model=Redrive, verb="retry", using=alias)


def redriven_of(run: Redrive) -> Redriven:
    """What callers see of a row."""
    return Redriven(
        id=run.pk,
        state=str(run.phase),
        matched=run.matched or 0,
        redriven=run.changed,
        skipped=run.refused,
        reason=str(run.problem),
        filters=run.filters,
        limit=run.job_limit,
        canary=run.canary,
        per_second=run.per_second,
        alone=run.alone,
        created_at=run.created_at,
        ended_at=run.ended_at,
    )


def _record(run: Redrive, using: str) -> None:
    def record() -> None:
        _check_first(run, using)
        run.save(using=using, force_insert=True)

    try:
        retry_transient("retry", record, using=using, repeatable=False)
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"whether the redrive was recorded is unknown: the connection broke ({error.__cause__}) before the answer. "
            "Look at redrives() before you repeat it."
        ) from error


def _check_first(run: Redrive, using: str) -> None:
    """Refuse a second redrive of the same dead letters: it would pass the canary and the rate of the first one."""
    under_way = Redrive.objects.using(using).filter(due_at__isnull=False, alone=False)
    for number, filters in under_way.order_by("due_at").values_list("pk", "filters"):
        if filters == run.filters and run.matched:
            raise InvalidValue(
                f"redrive {number} has the same filter and is under way. Nothing was recorded; wait for its end, "
                f"or stop it: stop({number}), or manage.py jobs redrives stop {number}."
            )


def _check_scope(wanted: DeadFilter, everything: bool) -> None:
    if not wanted and everything is not True:
        raise InvalidValue(
            "a redrive needs a filter: fingerprint, queue, task, cause or job_ids. Nothing was recorded; for all dead "
            "letters pass everything=True."
        )
    if wanted and everything:
        raise InvalidValue(
            f"everything=True and a filter ({', '.join(wanted)}) contradict each other. Nothing was recorded; "
            "leave one out."
        )
