"""Look at groups, seal them, cancel them, and resume workflows from the nodes that did not end well."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import connections

from jobqueue import wakeup
from jobqueue.base.validation import check_id, check_int
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.ends import end_if_last
from jobqueue.grouping.members import Callback, Group, read_group, stored
from jobqueue.grouping.nodes import close_gates, note_ends, parents_again
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.transitions.canceling import cancel_members
from jobqueue.transitions.operator import make_due

State = JobGroup.State
MemberState = GroupMember.State
_LIVE = (Job.Status.READY, Job.Status.PROCESSING)


def insert_group(
    name: str,
    callbacks: Mapping[str, Callback | None],
    data: Encoded | None,
    using: str,
    begin: Callable[[], None],
    *,
    if_failed: JobGroup.IfFailed | None = None,
) -> int:
    """Check the callbacks, call `begin`, and insert an open group, or a workflow with `if_failed`; its id."""
    group = JobGroup(name=name, state=State.OPEN, callbacks=stored(callbacks, using), data=data, if_failed=if_failed)
    begin()
    with explain_missing_table(using):
        retry_transient("enqueue", partial(group.save, using=using, force_insert=True), using=using, repeatable=False)
    return int(group.pk)


def get(group_id: int | str, *, using: str | None = None) -> Group:
    """The group with its counts, which may lag while it has not ended. Raises InvalidValue if there is none."""
    alias, number = alias_of(using), check_id(group_id)

    def read() -> Group:
        row = JobGroup.objects.using(alias).filter(pk=number).first()
        if row is None:
            raise _unknown(number)
        return read_group(row, alias)

    return retry_transient("result", read, using=alias)


def known(*, limit: int = 20, ended: bool = True, using: str | None = None) -> list[Group]:
    """The newest groups, up to `limit` (1 to 10,000). `ended`: also those that have ended."""
    alias = alias_of(using)
    check_int(limit, "limit", 1, 10_000)
    rows = JobGroup.objects.using(alias).order_by("-pk")
    rows = rows if ended else rows.filter(state__in=(State.OPEN, State.SEALED))
    return retry_transient("result", lambda: [read_group(row, alias) for row in rows[:limit]], using=alias)


def seal(group_id: int | str, *, using: str | None = None) -> bool:
    """Let an open group end with its last member, at once if none is outstanding; False if it was sealed before.

    Its running members may still add others. Raises InvalidValue if there is no such group.
    """
    return _seal(group_id, alias_of(using), cancels=False)


def cancel(group_id: int | str, *, using: str | None = None) -> bool:
    """Seal a group, refuse new members, and cancel those that wait; running ones are asked to stop.

    False if it has ended, or was canceled before. In transactions of 500 jobs, or in the caller's. What a process that
    dies leaves undone is done by workers. Raises InvalidValue if there is no such group.
    """
    alias, number = alias_of(using), check_id(group_id)
    changed = _seal(number, alias, cancels=True)
    if changed:
        cancel_members(number, using=alias)
    return changed


def _seal(group_id: int | str, using: str, *, cancels: bool) -> bool:
    number = check_id(group_id)

    def work() -> bool:
        with vendor(using).transaction(connections[using]):
            group = JobGroup.objects.using(using).filter(pk=number).defer("data").select_for_update().first()
            if group is None:
                raise _unknown(number)
            if group.state == State.ENDED or (group.canceled_at if cancels else group.state == State.SEALED):
                return False
            row = JobGroup.objects.using(using).filter(pk=number)
            if cancels:
                row.update(canceled_at=UtcNow())
            row.filter(state=State.OPEN).update(state=State.SEALED, sealed_at=UtcNow())
            end_if_last(number, using)
            return True

    with explain_missing_table(using):
        return retry_transient("settle", work, using=using)


def _unknown(number: int) -> InvalidValue:
    return InvalidValue(f"there is no group {number}. Nothing was written; `jobs groups` lists them.")


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of resume(), or of its dry run: names of nodes, in the order in which they were added."""

    workflow_id: int
    runs: tuple[str, ...]  # at once, or since a retry by hand
    waits: tuple[str, ...]  # for the others
    dry_run: bool


def resume(workflow_id: int | str, *, dry_run: bool = False, using: str | None = None) -> Resumed:
    """Run the FAILED and CANCELED nodes of a workflow again, each after its parents; what is DONE stays, and what runs.

    Each has a fresh allowance of attempts, as after retry(). A workflow that has ended ends again, and its callbacks
    are enqueued again then. In one transaction or the caller's. `dry_run`: only tell. Nothing is done if all went well.
    Raises InvalidValue if there is no such workflow, if it is being canceled, or if a node cannot run again because its
    job or that of a DONE parent was deleted, or because its dedupe key is held. Nothing was written then.
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
        _refuse_deleted(group, using)
        names = _nodes_that_did_not_end_well(number, using)
        # Parents too, so that they are not deleted meanwhile: their results are for the nodes that run again.
        wanted = {*names} | _done_parents(names, using)
        rows = Job.objects.using(using).filter(pk__in=wanted).order_by("pk")
        found = list(rows if dry_run else rows.select_for_update())
        if gone := wanted - {job.pk for job in found}:
            raise InvalidValue(
                f"job {min(gone)} of the workflow {number} was deleted, and it is to run again, or its result is for a "
                "node that is. Nothing was written; make another workflow."
            )
        jobs = [job for job in found if job.pk in names]
        # Some may have been retried by hand after the end: the workflow has not noted how they go on.
        again = [job for job in jobs if job.status != Job.Status.DONE]
        waits = _waiting([job.pk for job in again], using) - {job.pk for job in again if job.status in _LIVE}
        told = Resumed(
            number,
            runs=tuple(names[job.pk] for job in again if job.pk not in waits),
            waits=tuple(names[job.pk] for job in again if job.pk in waits),
            dry_run=dry_run,
        )
        if dry_run or not again:
            return told, set()
        done = [job.pk for job in jobs if job.status == Job.Status.DONE]
        return told, _run_again(group, again, waits, done, using)


def _refuse_deleted(group: JobGroup, using: str) -> None:
    """Raise for a workflow of which members are gone: the cleaner of old groups has begun with it."""
    if group.total is not None and GroupMember.objects.using(using).filter(group_id=group.pk).count() < group.total:
        raise InvalidValue(
            f"the workflow {group.pk} ended so long ago that it is being deleted. Nothing was written; make another."
        )


def _nodes_that_did_not_end_well(group_id: int, using: str) -> dict[int, str]:
    """Their names by the ids of their jobs, in order."""
    wrong = GroupMember.objects.using(using).filter(
        group_id=group_id, state__in=(MemberState.FAILED, MemberState.CANCELED)
    )
    # Plain SQL may have added members without a name, which are no nodes.
    rows = wrong.filter(name__isnull=False).order_by("pk").values_list("pk", "name")
    return {job_id: str(name) for job_id, name in rows}


def _done_parents(nodes: Collection[int], using: str) -> set[int]:
    """The DONE parents of the nodes."""
    pairs = GroupParent.objects.using(using).filter(child_id__in=sorted(nodes), state=MemberState.DONE)
    return {*pairs.values_list("parent_id", flat=True)}


def _waiting(again: Sequence[int], using: str) -> set[int]:
    """Those of the nodes that have a parent that has not ended, or runs again too."""
    pairs = GroupParent.objects.using(using).filter(child_id__in=again).values_list("child_id", "parent_id", "state")
    rerun = {*again}
    return {child for child, parent, state in pairs if parent in rerun or state == MemberState.OUTSTANDING}


def _run_again(group: JobGroup, again: Sequence[Job], waits: set[int], done: Sequence[int], using: str) -> set[str]:
    """Open the group for nodes that run again, and note those that are DONE by now; the queues of jobs that are due."""
    JobGroup.objects.using(using).filter(pk=group.pk).update(
        state=JobGroup.State.SEALED, ended_at=None, canceled_at=None, total=None, done=None, failed=None, canceled=None
    )
    ids = [job.pk for job in again]
    members = GroupMember.objects.using(using)
    members.filter(pk__in=done).update(state=MemberState.DONE)
    members.filter(pk__in=ids).update(state=MemberState.OUTSTANDING)
    parents_again([*ids, *done], using)
    note_ends({MemberState.DONE: done}, using)
    close_gates([job for job in again if job.pk in waits], using)
    for job in again:
        if job.status not in _LIVE and not make_due(job, using):
            raise InvalidValue(
                f"job {job.pk} of the workflow {group.pk} cannot run again: its dedupe key is held by another job. "
                "Nothing was written; wait for the end of that one, or cancel it."
            )
    return {job.queue for job in again if job.pk not in waits}
