"""Which jobs each bulk verb can change, of those that match a filter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q

from jobqueue.base.validation import did_you_mean
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import InvalidValue
from jobqueue.failures import FailureCause
from jobqueue.models import AuditEvent, Job
from jobqueue.models.states import STATES
from jobqueue.runs.job_filter import condition

#: the states whose jobs each verb changes; "retry" makes delayed and held jobs run only where their state is chosen
VERB_STATES: dict[str, tuple[str, ...]] = {
    AuditEvent.Verb.RETRY: ("failed", "canceled", "scheduled", "retrying", "held"),
    AuditEvent.Verb.CANCEL: ("ready", "scheduled", "retrying", "held", "running", "expired"),
    AuditEvent.Verb.DISCARD: ("ready", "scheduled", "retrying", "held", "failed"),
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


def changeable(verb: str, filters: Mapping[str, Any]) -> Q:
    """The condition on jobs that `verb` can change, of those that match."""
    if verb == AuditEvent.Verb.RETRY and filters.get("state") in ("scheduled", "retrying", "held"):
        return Q(status=Job.Status.READY) & _changeable_in(verb, filters["state"])
    return Q(status__in=_STATUSES[verb])


def _changeable_in(verb: str, state: str) -> Q:
    """The condition on jobs of this state that `verb` can change."""
    # A node that is due waits for its parents alone, and these a retry leaves as they are.
    waits = verb == AuditEvent.Verb.RETRY and state == "scheduled"
    return Q(run_at__gt=UtcNow()) if waits else Q()


def by_status(verb: str, filters: Mapping[str, Any]) -> list[tuple[int, Q, dict[str, Any]]]:
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


def still(verb: str, filters: Mapping[str, Any], since: datetime) -> Q:
    """What is to be true of the locked row of a job that was found by `filters`, so that `verb` may change it."""
    return changeable(verb, filters) & quiet_since(verb, since) & condition(filters)


def status_of(verb: str, filters: Mapping[str, Any]) -> int | None:
    """The status that all jobs have which match and can be changed, if it is one."""
    if filters.get("state") == "failed" or "fingerprint" in filters:
        return int(Job.Status.FAILED)
    if "cause" in filters and filters["cause"] != FailureCause.EXPIRED:
        return int(Job.Status.FAILED)
    return int(Job.Status.PROCESSING) if verb == AuditEvent.Verb.RELEASE or "worker" in filters else None


def check_verb(verb: str, filters: Mapping[str, Any]) -> None:
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
