"""Jobs that wait for each other: those of one queue and ordering key, strictly one after another; and held keys."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import KeyField, UnsignedBigAutoField, UtcDateTimeField


class LaneEntry(models.Model):
    """A job's entry in the lane of its ordering key, until the job has ended; the lowest id is the lane's head.

    Only the head's job may have gate 0. Written by enqueue and the transitions, which remove those of ended jobs.
    """

    id = UnsignedBigAutoField(primary_key=True)
    # A number of queue and key: jobqueue.ordering.lanes.lane_of().
    lane = models.BigIntegerField(_("lane"))
    # No constraint in the database: a foreign key would lock the job's row, and any program may delete a job.
    job = models.OneToOneField("jobqueue.Job", models.DO_NOTHING, null=True, db_constraint=False, related_name="+")
    # An earlier job failed and the policy is "halt": the head stays behind its gate until resume().
    halted = models.BooleanField(_("halted"), default=False, db_default=False)

    class Meta:
        db_table = "job_lane"
        verbose_name = _("lane entry")
        verbose_name_plural = _("lane entries")
        default_permissions = ("view",)
        indexes = [
            # ordering.lanes: one seek per lane, the first entries of each
            models.Index(fields=["lane", "id"], name="ix_lane_entry"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} in lane {self.lane}"


class HeldKey(models.Model):
    """A key that a transaction locks until COMMIT while it enqueues or publishes with it. Nothing is read from it.

    Rows may be deleted.
    """

    #: SHA-256 of queue and ordering key, or of the key of events
    digest = KeyField(_("digest"), primary_key=True)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())

    class Meta:
        db_table = "job_key"
        verbose_name = _("ordering key")
        verbose_name_plural = _("ordering keys")
        default_permissions = ("view",)
        indexes = [
            # maintenance.cleaner: oldest first
            models.Index(fields=["created_at"], name="ix_key_age"),
        ]

    def __str__(self) -> str:
        return bytes(self.digest).hex()
