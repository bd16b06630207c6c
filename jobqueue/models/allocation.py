"""Which rows a request received: the records that make allocate.take() idempotent."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import KeyField, NameField, UnsignedBigAutoField, UtcDateTimeField


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
        constraints = [
            # take(): the first to insert a request id has it; all others wait here and read the winner's rows
            models.UniqueConstraint(fields=["table_label", "request_id"], name="uq_allocation_request"),
        ]

    def __str__(self) -> str:
        return f"{len(self.row_ids)} rows of {self.table_label}"
