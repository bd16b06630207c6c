"""The outbox: events that are there if and only if the transaction that published them committed."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.base.validation import TOPIC_CHARS
from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import (
    ErrorField,
    KeyField,
    NameField,
    PayloadField,
    TokenField,
    UnsignedBigAutoField,
    UtcDateTimeField,
)


class OutboxEvent(models.Model):
    """One event. Pending while it has a lane; within the lane of a key the lowest id is delivered first."""

    id = UnsignedBigAutoField(primary_key=True)
    topic = NameField(_("topic"), max_length=TOPIC_CHARS)
    key = KeyField(_("key"), null=True)
    payload = PayloadField(_("payload"))
    # Which events wait for each other: a number of the key, or of the topic for events without key. NULL = not pending.
    lane = models.BigIntegerField(_("lane"), null=True)
    # When a relay may take it: the end of a lease or of a wait. NULL while pending: a dead letter that blocks its key.
    due_at = UtcDateTimeField(_("due at"), null=True, db_default=UtcNow())
    lock_token = TokenField(_("token"), null=True)
    attempts = models.IntegerField(_("attempts"), default=0, db_default=0)
    last_error = ErrorField(_("last error"), null=True)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    # Delivered; with failed_at: discarded.
    processed_at = UtcDateTimeField(_("processed at"), null=True)
    failed_at = UtcDateTimeField(_("dead letter since"), null=True)

    class Meta:
        db_table = "job_outbox"
        verbose_name = _("outbox event")
        verbose_name_plural = _("outbox events")
        default_permissions = ("view",)
        indexes = [
            # lanes.active(): which lanes have pending events; claiming: the first events of a key
            models.Index(fields=["lane", "id"], name="ix_outbox_lane"),
            # claiming: due events without key, first due first
            models.Index(fields=["lane", "due_at", "id"], name="ix_outbox_due"),
            # maintenance.cleaner: delivered events, oldest first
            models.Index(fields=["processed_at"], name="ix_outbox_processed"),
            # dead_letters()
            models.Index(fields=["failed_at"], name="ix_outbox_failed"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"
