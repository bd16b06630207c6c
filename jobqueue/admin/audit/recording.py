"""What users of the admin start and stop, recorded with their names."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib.admin.models import ADDITION, CHANGE
from django.db import Error
from django.http import HttpRequest

from jobqueue import bulk_verbs
from jobqueue.admin.page.history import log_entry
from jobqueue.conf import load
from jobqueue.exceptions import OutcomeUnknown
from jobqueue.models import AuditEvent
from jobqueue.models.audit import USER_CHARS

#: verb -> the permission that starting and stopping it needs
PERMISSIONS: dict[str, str] = {
    AuditEvent.Verb.RETRY: "retry_job",
    AuditEvent.Verb.CANCEL: "cancel_job",
    AuditEvent.Verb.DISCARD: "discard_job",
    AuditEvent.Verb.RELEASE: "release_job",
    AuditEvent.Verb.PRUNE: "prune_jobs",
}


def permitted(request: HttpRequest) -> list[str]:
    """The verbs that this user may apply."""
    return [verb for verb, name in PERMISSIONS.items() if request.user.has_perm(f"jobqueue.{name}")]


def record(
    request: HttpRequest,
    verb: str,
    filters: Mapping[str, str],
    *,
    reason: str = "",
    everything: bool = False,
    until_id: int | None = None,
) -> AuditEvent:
    """Record a bulk verb in the name of this user, as bulk_verbs.record(), and in the history.

    The caller has checked the permission. Raises OutcomeUnknown if it was recorded, but not in the history.
    """
    who = bulk_verbs.Who(str(request.user.pk or ""), request.user.get_username()[:USER_CHARS], "admin")
    event = bulk_verbs.record(
        verb, filters, who=who, reason=reason, everything=everything, until_id=until_id, using=load().database
    )
    try:
        log_entry(request, AuditEvent, event.pk, str(event), ADDITION, verb).save()
    except Error as error:
        # A database error would make the user believe that nothing was started.
        raise OutcomeUnknown(f"bulk action {event.pk} was recorded, but not in the history: {error}") from error
    return event


def stop(request: HttpRequest, event: AuditEvent) -> bool:
    """End a bulk verb in the name of this user. False if it has ended, or if the user may not apply that verb."""
    if event.verb not in permitted(request):
        return False
    stopped = bulk_verbs.stop(event.pk, by=request.user.get_username(), using=load().database)
    if stopped:
        log_entry(request, AuditEvent, event.pk, str(event), CHANGE, "stop").save()
    return stopped
