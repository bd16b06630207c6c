"""What repeated requests get again: the records of idempotency.once() and of allocate.take()."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import KeyField, NameField, PayloadField, UnsignedBigAutoField, UtcDateTimeField


class IdempotencyRecord(models.Model):
    """One effect that has happened. Committed together with the effect, so a committed row is always complete."""

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


class Allocation(models.Model):
    """One answered request. Committed together with the rows it names; a request that got nothing has none."""

    id = UnsignedBigAutoField(primary_key=True)
    table_label = NameField(_("table"), max_length=255)
    request_id = KeyField(_("request id"))
    # Primary keys as text, in the order they were handed out; no foreign key: any table, any key type.
    row_ids = models.JSONField(_("row ids"))
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())

    class Meta:
        db_table = "job_allocation"
        verbose_name = _("allocation")
        verbose_name_plural = _("allocations")
        default_permissions = ("view",)
        constraints = [
            # take(): the first to insert a request id has it; all others wait here and read the winner's rows
            models.UniqueConstraint(fields=["table_label", "request_id"], name="uq_allocation_request"),
        ]
        indexes = [
            # maintenance.cleaner: oldest first
            models.Index(fields=["created_at"], name="ix_allocation_age"),
        ]

    def __str__(self) -> str:
        return f"{len(self.row_ids)} rows of {self.table_label}"
