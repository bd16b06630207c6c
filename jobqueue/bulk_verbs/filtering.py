"""Which jobs a filter of the list of jobs means, and which of these a verb can change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from django.db.models import Q

from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures import FailureCause
from jobqueue.models import AuditEvent, Job, JobTag
from jobqueue.models.job import JobQuerySet
from jobqueue.models.states import STATES, condition_of
from jobqueue.validation import check_queue, check_tag, check_text, check_worker, did_you_mean

#: the states whose jobs each verb changes; "retry" makes delayed and held jobs run only where their state is chosen
VERB_STATES: dict[str, tuple[str, ...]] = {
    AuditEvent.Verb.RETRY: ("failed", "canceled", "scheduled", "held"),
    AuditEvent.Verb.CANCEL: ("ready", "scheduled", "held", "running", "expired"),
    AuditEvent.Verb.DISCARD: ("ready", "scheduled", "held", "failed"),
    AuditEvent.Verb.RELEASE: ("running", "expired"),
    AuditEvent.Verb.PRUNE: ("done", "failed", "canceled"),
}
_STATUSES: dict[str, tuple[int, ...]] = {
    AuditEvent.Verb.RETRY: (Job.Status.FAILED, Job.Status.CANCELED),
    AuditEvent.Verb.CANCEL: (Job.Status.READY, Job.Status.PROCESSING),
    AuditEvent.Verb.DISCARD: (Job.Status.READY, Job.Status.FAILED),
    AuditEvent.Verb.RELEASE: (Job.Status.PROCESSING,),
    AuditEvent.Verb.PRUNE: (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED),
}
#: the columns of which none may be later than the record of a bulk action, so that what nobody has seen stays, and what
#: another action has brought back is not brought back again
_QUIET: dict[str, tuple[str, ...]] = {
    AuditEvent.Verb.RETRY: ("finished_at", "last_started_at"),
    AuditEvent.Verb.DISCARD: ("finished_at",),
    AuditEvent.Verb.PRUNE: ("finished_at",),
}
_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.ASCII)
#: fingerprints of one filter, and jobs that it names
FINGERPRINTS_MAX, IDS_MAX = 100, 1000


def matching(
    filters: Mapping[str, str], using: str, *, above: int | None = None, up_to: int | None = None
) -> JobQuerySet:
    """The jobs that match all of `filters`, in no order; without filters all jobs.

    Names: state, queue, task, tag, cause, fingerprint, worker, job_ids, from_id. Several fingerprints, or ids, have
    commas between them; from_id means the job with this id and those added later. `above`, `up_to`: only ids in this
    range, which bounds what is read. Raises InvalidValue and InvalidType for unknown names and for values that no job
    can have.
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
            rows = rows.filter(_CONDITIONS[name](value))
    return rows


def changeable(verb: str, filters: Mapping[str, str]) -> Q:
    """The condition on jobs that `verb` can change, of those that match."""
    if verb == AuditEvent.Verb.RETRY and filters.get("state") in ("scheduled", "held"):
        return Q(status=Job.Status.READY) & _changeable_in(verb, filters["state"])
    return Q(status__in=_STATUSES[verb])


def _changeable_in(verb: str, state: str) -> Q:
    """The condition on jobs of this state that `verb` can change."""
    # A node that is due waits for its parents alone, and these a retry leaves as they are.
    waits = verb == AuditEvent.Verb.RETRY and state == "scheduled"
    return Q(run_at__gt=UtcNow()) if waits else Q()


def by_status(verb: str, filters: Mapping[str, str]) -> list[tuple[int, Q, dict[str, str]]]:
    """The same jobs, those of each status apart: the status, a condition, and the filters that are left."""
    if (state := filters.get("state")) is not None:
        status, rest = STATES[state]
        condition = rest & _changeable_in(verb, state)
        return [(status, condition, {name: value for name, value in filters.items() if name != "state"})]
    only = status_of(verb, filters)
    return [(status, Q(), dict(filters)) for status in _STATUSES[verb] if only in (None, status)]


def quiet_since(verb: str, since: datetime) -> Q:
    """The condition on jobs that `verb`, recorded at `since`, may still change.

    retry, discard and prune leave out jobs that ended after `since`; retry also those that began after it.
    """
    found = Q()
    for column in _QUIET.get(verb, ()):
        found &= Q(**{f"{column}__isnull": True}) | Q(**{f"{column}__lte": since})
    return found


def still(verb: str, filters: Mapping[str, str], since: datetime) -> Q:
    """What is to be true of the locked row of a job that was found by `filters`, so that `verb` may change it.

    Others may have changed the job since it was found; its id and its tags stay.
    """
    found = changeable(verb, filters) & quiet_since(verb, since)
    for name, value in sorted(filters.items()):  # in one order, so that a server sees one statement
        if name not in ("tag", "job_ids", "from_id"):
            found &= _CONDITIONS[name](value)
    return found


def status_of(verb: str, filters: Mapping[str, str]) -> int | None:
    """The status that all jobs have which match and can be changed, if it is one."""
    if filters.get("state") == "failed" or "fingerprint" in filters:
        return int(Job.Status.FAILED)
    if "cause" in filters and filters["cause"] != FailureCause.EXPIRED:
        return int(Job.Status.FAILED)
    return int(Job.Status.PROCESSING) if verb == AuditEvent.Verb.RELEASE or "worker" in filters else None


def check_verb(verb: str, filters: Mapping[str, str]) -> None:
    """Raise InvalidValue for an unknown verb, and for one that changes no job of the chosen state."""
    if verb not in VERB_STATES:
        names = [known.value for known in AuditEvent.Verb]
        raise InvalidValue(
            f"verb must be one of {', '.join(names)}, got {verb!r:.40}{did_you_mean(verb, names)}. Nothing was written."
        )
    state = filters.get("state")
    if state is not None and state not in VERB_STATES[verb]:
        raise InvalidValue(
            f"{verb} changes no job in the state {state!r:.40}. Nothing was written; choose another verb."
        )


def check_filters(filters: Mapping[str, str]) -> dict[str, str]:
    """The filters, if all have known names and possible values. Raises InvalidValue, InvalidType."""
    for name, value in filters.items():
        if name not in _CHECKS:
            raise InvalidValue(
                f"there is no filter {name[:40]!r} for many jobs{did_you_mean(name, _CHECKS)}. Nothing was written; "
                f"the filters are {', '.join(_CHECKS)}."
            )
        if not isinstance(value, str):
            raise InvalidType(f"{name} must be a text, got {type(value).__name__}. Nothing was written.")
        _CHECKS[name](value)
    return dict(filters)


def _one_of(name: str, known: tuple[str, ...]) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in known:
            raise InvalidValue(
                f"{name} must be one of {', '.join(known)}, got {value!r:.80}{did_you_mean(value, known)}. "
                "Nothing was written."
            )

    return check


def is_fingerprint(value: str) -> bool:
    """Whether a text has the form of one fingerprint."""
    return _FINGERPRINT.fullmatch(value) is not None


def _check_fingerprints(value: str) -> None:
    marks = value.split(",")
    if not all(map(is_fingerprint, marks)):
        raise InvalidValue(f"fingerprint={value[:40]!r} is not one: 16 hexadecimal digits. Nothing was written.")
    _check_number("fingerprint", len(marks), FINGERPRINTS_MAX)


def _check_ids(value: str) -> None:
    ids = value.split(",")
    for one in ids:
        _check_id(one)
    _check_number("job_ids", len(ids), IDS_MAX)


def _check_id(value: str) -> None:
    # BIGINT has 19 digits; not every number of so many fits.
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise InvalidValue(f"{value[:40]!r} is not the id of a job. Nothing was written.")


def _check_number(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidValue(f"{name} has {count:,} values; allowed are up to {most:,}. Nothing was written.")


def ids_of(filters: Mapping[str, str]) -> list[int] | None:
    """The jobs that checked filters name, in order; None if they name none."""
    return sorted({int(one) for one in filters["job_ids"].split(",")}) if "job_ids" in filters else None


def first_id_of(filters: Mapping[str, str]) -> int:
    """The id from which on jobs can match these checked filters."""
    return int(filters.get("from_id", 0))


def _cause(value: str) -> Q:
    """Why FAILED jobs failed; jobs that expired are CANCELED."""
    return Q(status=Job.Status.CANCELED if value == FailureCause.EXPIRED else Job.Status.FAILED, cause=value)


_CHECKS: dict[str, Callable[[str], object]] = {
    "state": _one_of("state", tuple(STATES)),
    "queue": check_queue,
    "task": lambda value: check_text(value, "task"),
    "tag": check_tag,
    "cause": _one_of("cause", tuple(cause.value for cause in FailureCause)),
    "fingerprint": _check_fingerprints,
    "worker": check_worker,
    "job_ids": _check_ids,
    "from_id": _check_id,
}
_CONDITIONS: dict[str, Callable[[str], Q]] = {
    "state": condition_of,
    "queue": lambda value: Q(queue=value),
    "task": lambda value: Q(task=value),
    "cause": _cause,
    "fingerprint": lambda value: Q(status=Job.Status.FAILED, fingerprint__in=value.split(",")),
    "worker": lambda value: Q(status=Job.Status.PROCESSING, locked_by=value),
    "job_ids": lambda value: Q(pk__in=[int(one) for one in value.split(",")]),
    "from_id": lambda value: Q(pk__gte=int(value)),
}
#: the names of the filters
FILTERS = (*_CHECKS,)
