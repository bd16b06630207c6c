"""Groups of jobs: the group, and a row for each member, from which it is decided whether the group has ended."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import (
    JobIdField,
    NameField,
    PayloadField,
    TinyIntegerField,
    UnsignedBigAutoField,
    UtcDateTimeField,
)

GROUP_CHARS = 255


class JobGroup(models.Model):
    """A group of jobs. The row is locked only by who adds members, seals it, or finds no member that is left."""

    class State(models.IntegerChoices):
        """OPEN: it does not end before it is sealed."""

        OPEN = 0, _("open")
        SEALED = 1, _("sealed")
        ENDED = 2, _("ended")

    id = UnsignedBigAutoField(primary_key=True)
    name = NameField(_("name"), max_length=GROUP_CHARS)
    state = TinyIntegerField(_("state"), choices=State.choices, default=State.OPEN, db_default=0)
    # The jobs that its end adds: producer.stored; by on_success, on_failure, on_done.
    callbacks = PayloadField(_("callbacks"), null=True)
    # Written once, when it ends.
    total = models.IntegerField(_("total"), null=True)
    done = models.IntegerField(_("done"), null=True)
    failed = models.IntegerField(_("failed"), null=True)
    canceled = models.IntegerField(_("canceled"), null=True)
    canceled_at = UtcDateTimeField(_("canceled at"), null=True)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    sealed_at = UtcDateTimeField(_("sealed at"), null=True)
    ended_at = UtcDateTimeField(_("ended at"), null=True)

    class Meta:
        db_table = "job_group"
        verbose_name = _("group")
        verbose_name_plural = _("groups")
        default_permissions = ("view",)
        indexes = [
            # maintenance.group_sweep: those that have not ended
            models.Index(fields=["state", "id"], name="ix_group_state"),
            # maintenance.group_cleaner
            models.Index(fields=["ended_at"], name="ix_group_ended"),
        ]

    def __str__(self) -> str:
        return str(self.name)


class GroupMember(models.Model):
    """A job of a group. Its state is written in the transaction that ends the job."""

    class State(models.IntegerChoices):
        """OUTSTANDING: the job has not ended."""

        OUTSTANDING = 0, _("outstanding")
        DONE = 1, _("done")
        FAILED = 2, _("failed")
        CANCELED = 3, _("canceled")

    job_id = JobIdField(_("job"), primary_key=True)
    group_id = models.BigIntegerField(_("group"))
    state = TinyIntegerField(_("state"), choices=State.choices, default=State.OUTSTANDING, db_default=0)

    class Meta:
        db_table = "job_group_member"
        verbose_name = _("member of a group")
        verbose_name_plural = _("members of groups")
        default_permissions = ("view",)
        indexes = [
            # grouping.ending: whether a member is outstanding; grouping.reading: counts and results
            models.Index(fields=["group_id", "state", "job_id"], name="ix_group_member"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} of group {self.group_id}"
