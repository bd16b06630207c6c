"""What users of the admin start and stop, recorded with their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.db import Error
from django.db.models import Model
from django.db.models.signals import pre_delete
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils import timezone

from jobqueue import bulk_verbs
from jobqueue.admin.page.history import log_entry
from jobqueue.conf import load
from jobqueue.exceptions import OutcomeUnknown
from jobqueue.failures import storable
from jobqueue.models import AuditEvent, Job
from jobqueue.models.audit import REASON_CHARS, USER_CHARS

KEPT_BATCH, VERB_CHARS = 500, 16
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


@receiver(pre_delete, sender=settings.AUTH_USER_MODEL)
def keep_records(instance: Model, using: str, **_: object) -> None:
    """Keep what a user has done to our rows: Django deletes the history of an account with the account.

    Bulk actions have rows of their own already.
    """
    entries = LogEntry.objects.using(using).filter(user_id=instance.pk, content_type__app_label="jobqueue")
    entries = entries.exclude(content_type__model=AuditEvent._meta.model_name).select_related("content_type")
    events = [_event_of(entry, instance) for entry in entries.order_by("pk")]
    AuditEvent.objects.using(load().database).bulk_create(events, batch_size=KEPT_BATCH)


def _event_of(entry: LogEntry, user: Any) -> AuditEvent:
    """A record of the history as an action that has ended."""
    assert entry.content_type is not None
    model, words = entry.content_type.model, entry.get_change_message()
    at = entry.action_time if timezone.is_aware(entry.action_time) else timezone.make_aware(entry.action_time)
    return AuditEvent(
        user_id=str(user.pk),
        user_name=storable(user.get_username(), USER_CHARS),
        program="admin",
        verb=storable(words.partition(" ")[0], VERB_CHARS) or "change",
        filters={"job_ids": entry.object_id} if model == Job._meta.model_name else {model: entry.object_repr},
        reason=storable(words, REASON_CHARS),
        phase=AuditEvent.State.DONE,
        matched=1,
        changed=1,
        until_id=0,
        due_at=None,
        created_at=at,
        started_at=at,
        ended_at=at,
    )
