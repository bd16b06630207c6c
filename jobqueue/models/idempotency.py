"""What repeated requests get again: the records of idempotency.once() and of allocate.take()."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import KeyField, NameField, PayloadField, UtcDateTimeField


class IdempotencyRecord(models.Model):
    """One effect that has happened. Committed together with the effect, so a committed row is always complete.

    Of take() the effect is the rows that it has handed out: `result` has their primary keys as texts, in order.
    """

    # SHA-256 of the key: byte-exact on every database, whatever the key's length. The first to insert it has the
    # key; all others wait here and read the winner's result. The primary key, because in any other unique index InnoDB
    # looks for duplicates of a deleted value in the next row too, and would wait for an unrelated row.
    digest = KeyField(_("digest"), primary_key=True)
    label = NameField(_("key"), max_length=255)
    # SHA-256 of the request; another request under the same key is refused.
    fingerprint = KeyField(_("fingerprint"), null=True)
    result = PayloadField(_("result"), null=True)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    expires_at = UtcDateTimeField(_("expires at"))

    class Meta:
        db_table = "job_idempotency"
        verbose_name = _("idempotency record")
        verbose_name_plural = _("idempotency records")
        default_permissions = ("view", "delete")
        indexes = [
            # maintenance.cleaner: expired records, oldest first
            models.Index(fields=["expires_at"], name="ix_idempotency_expiry"),
        ]

    def __str__(self) -> str:
        return str(self.label)
