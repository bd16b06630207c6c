"""resume(): a workflow goes on from the nodes that did not end well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django.db import connections

from jobqueue import wakeup
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.ending import outstanding_again
from jobqueue.grouping.nodes import note_ends, parents_again
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.models.group import PARENTS_GATE
from jobqueue.transitions.operator import make_due
from jobqueue.validation import check_id

State = GroupMember.State


@dataclass(frozen=True, slots=True)
class Resumed:
    """What resume() did, or would do: names of nodes, in the order in which they were added."""

    workflow_id: int
    runs: tuple[str, ...]  # at once
    waits: tuple[str, ...]  # for the others
    dry_run: bool


def resume(workflow_id: int | str, *, dry_run: bool = False, using: str | None = None) -> Resumed:
    """Run the FAILED and CANCELED nodes of a workflow again, each after its parents; what is DONE stays.

    Each has a fresh allowance of attempts, as after retry(). A workflow that has ended ends again, and its callbacks
    are enqueued again then. In one transaction or the caller's. `dry_run`: only tell. Nothing is done if all went well.
    A node that was retried after the end of the workflow is DONE if it is, or is waited for.
    Raises InvalidValue if there is no such workflow, if it is being canceled, or if a node cannot run again because its
    job was deleted or its dedupe key is held. Nothing was written then.
    """
    alias, number = alias_of(using), check_id(workflow_id)
    with explain_missing_table(alias):
        found, queues = retry_transient("retry", partial(_resume, number, dry_run, alias), using=alias)
    for queue in queues:
        wakeup.notify(queue, alias)
    return found


def _resume(number: int, dry_run: bool, using: str) -> tuple[Resumed, set[str]]:
    with vendor(using).transaction(connections[using]):
        group = JobGroup.objects.using(using).filter(pk=number, if_failed__isnull=False).select_for_update().first()
        if group is None:
            raise InvalidValue(f"there is no workflow {number}. Nothing was written; `jobs groups` lists them.")
        if group.canceled_at is not None and group.state != JobGroup.State.ENDED:
            raise InvalidValue(
                f"the workflow {number} is being canceled, and jobs of it still run. Nothing was written; resume it "
                "when it has ended."
            )
        wrong = GroupMember.objects.using(using).filter(group_id=number, state__in=(State.FAILED, State.CANCELED))
        # Jobs that a running node has added to the group have no name, and are no nodes.
        rows = wrong.filter(name__isnull=False).order_by("pk").values_list("pk", "name")
        names = {job_id: str(name) for job_id, name in rows}
        jobs = Job.objects.using(using).filter(pk__in=[*names]).order_by("pk")
        known = {job.pk: job for job in (jobs if dry_run else jobs.select_for_update())}
        retried = [job for job in known.values() if job.status not in (Job.Status.FAILED, Job.Status.CANCELED)]
        again = [job_id for job_id in names if job_id not in {job.pk for job in retried}]
        waits = _waiting(again, [job.pk for job in retried if job.status != Job.Status.DONE], using)
        told = Resumed(
            number,
            runs=tuple(names[job_id] for job_id in again if job_id not in waits),
            waits=tuple(names[job_id] for job_id in again if job_id in waits),
            dry_run=dry_run,
        )
        if dry_run or not again:
            return told, set()
        if gone := [job_id for job_id in again if job_id not in known]:
            raise InvalidValue(
                f"job {gone[0]} of the workflow {number} was deleted, so it cannot run again. Nothing was written; "
                "make another workflow."
            )
        _open_again(number, retried, using)
        return told, _run_again(number, [known[job_id] for job_id in again], waits, using)


def _waiting(again: Sequence[int], live: Sequence[int], using: str) -> set[int]:
    """Those of the nodes that have a parent that has not ended, or runs again too."""
    pairs = GroupParent.objects.using(using).filter(child_id__in=again).values_list("child_id", "parent_id", "state")
    not_ended = {*again, *live}
    return {child for child, parent, state in pairs if parent in not_ended or state == State.OUTSTANDING}


def _open_again(number: int, retried: Sequence[Job], using: str) -> None:
    """`retried`: jobs of nodes that were retried after the end of the workflow, which has not noted it."""
    columns = dict.fromkeys(("ended_at", "canceled_at", "total", "done", "failed", "canceled"))
    JobGroup.objects.using(using).filter(pk=number).update(state=JobGroup.State.SEALED, **columns)
    if retried:
        outstanding_again([job.pk for job in retried], number, using)
    if done := [job.pk for job in retried if job.status == Job.Status.DONE]:
        GroupMember.objects.using(using).filter(pk__in=done).update(state=State.DONE)
        note_ends({State.DONE: done}, using)


def _run_again(number: int, jobs: Sequence[Job], waits: set[int], using: str) -> set[str]:
    """The queues in which jobs are due now."""
    parents_again([job.pk for job in jobs], using)
    for job in jobs:
        if job.pk in waits and job.gate != PARENTS_GATE:
            Job.objects.using(using).filter(pk=job.pk).update(gate=PARENTS_GATE)
            job.gate = PARENTS_GATE
        if not make_due(job, using):
            raise InvalidValue(
                f"job {job.pk} of the workflow {number} cannot run again: its dedupe key is held by another job. "
                "Nothing was written; wait for the end of that one, or cancel it."
            )
    return {job.queue for job in jobs if job.pk not in waits}
