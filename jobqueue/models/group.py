"""Groups of jobs: the group, and a row for each member, from which it is decided whether the group has ended.

A workflow is a group whose members, its nodes, have names, and a row for each pair of a parent and a child.
"""

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
#: the gate of a node that waits for its parents
PARENTS_GATE = 4
#: the wait_reason of such a node, and of one whose parent failed in a workflow with if_failed="hold"
WAITS_FOR_PARENTS, HELD_BY_PARENTS = "parents", "parents failed"


class JobGroup(models.Model):
    """A group of jobs. The row is locked only by who adds members, seals it, or finds no member that is left."""

    class State(models.IntegerChoices):
        """OPEN: it does not end before it is sealed."""

        OPEN = 0, _("open")
        SEALED = 1, _("sealed")
        ENDED = 2, _("ended")

    class IfFailed(models.IntegerChoices):
        """What becomes of a node whose parents have ended, one of them not DONE."""

        CANCEL = 0, _("cancel")
        CONTINUE = 1, _("continue")
        HOLD = 2, _("hold")

    id = UnsignedBigAutoField(primary_key=True)
    name = NameField(_("name"), max_length=GROUP_CHARS)
    state = TinyIntegerField(_("state"), choices=State.choices, default=State.OPEN, db_default=0)
    # NULL: not a workflow.
    if_failed = TinyIntegerField(_("if failed"), choices=IfFailed.choices, null=True)
    # The jobs that its end adds: producer.stored; by on_success, on_failure, on_done.
    callbacks = PayloadField(_("callbacks"), null=True)
    # What group(data=...) was given.
    data = PayloadField(_("data"), null=True)
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
            # maintenance.sweeps: those that have not ended
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
    # Of a node.
    name = NameField(_("name"), max_length=GROUP_CHARS, null=True)
    # Of a node that a running node has added: the job of that one.
    added_by = models.BigIntegerField(_("added by"), null=True)
    # Nodes were added behind it when its job was claimed already, perhaps: grouping.ends.
    late_children = models.BooleanField(_("late children"), default=False, db_default=False)

    class Meta:
        db_table = "job_group_member"
        verbose_name = _("member of a group")
        verbose_name_plural = _("members of groups")
        default_permissions = ("view",)
        indexes = [
            # grouping.ends: whether a member is outstanding; grouping.members: counts and results
            models.Index(fields=["group_id", "state", "job_id"], name="ix_group_member"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} of group {self.group_id}"


class GroupParent(models.Model):
    """A parent of a node, with the state of the parent: the node is decided when none is OUTSTANDING."""

    id = UnsignedBigAutoField(primary_key=True)
    group_id = models.BigIntegerField(_("group"))
    child_id = models.BigIntegerField(_("child"))
    parent_id = models.BigIntegerField(_("parent"))
    state = TinyIntegerField(_("state"), choices=GroupMember.State.choices, default=0, db_default=0)

    class Meta:
        db_table = "job_group_parent"
        verbose_name = _("parent of a node")
        verbose_name_plural = _("parents of nodes")
        default_permissions = ("view",)
        indexes = [
            # grouping.nodes: whether a parent is outstanding
            models.Index(fields=["child_id", "state", "id"], name="ix_group_child"),
            # grouping.nodes: the children of a node that has ended
            models.Index(fields=["parent_id"], name="ix_group_parent"),
            # maintenance.group_cleaner, groups.operator
            models.Index(fields=["group_id"], name="ix_group_of_parent"),
        ]

    def __str__(self) -> str:
        return f"parent {self.parent_id} of node {self.child_id}"
