"""What is known of a group. Counts of one that has not ended are read from its members, and may lag."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.callbacks import added_jobs
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.payload import JSON

_PAGE = 1000
State = GroupMember.State


@dataclass(frozen=True, slots=True)
class Group:
    """A group as it was read. Instants are aware, in UTC. `state` is "open", "sealed" or "ended".

    `if_failed` is that of a workflow; None: it is none.
    """

    id: int
    name: str
    state: str
    total: int
    done: int
    failed: int
    canceled: int
    created_at: datetime
    sealed_at: datetime | None
    canceled_at: datetime | None
    ended_at: datetime | None
    if_failed: str | None = None

    @property
    def outstanding(self) -> int:
        """How many members have not ended."""
        return max(0, self.total - self.done - self.failed - self.canceled)


def read_group(row: JobGroup, using: str) -> Group:
    """The group of a row, with its counts."""
    counts = {name: getattr(row, name) for name in ("total", "done", "failed", "canceled")}
    if row.state != JobGroup.State.ENDED:
        members = GroupMember.objects.using(using).filter(group_id=row.pk)
        found = dict(members.order_by().values_list("state").annotate(jobs=Count("pk")))
        counts = {state.name.lower(): found.get(state, 0) for state in (State.DONE, State.FAILED, State.CANCELED)}
        counts["total"] = sum(found.values())
    return Group(
        id=row.pk,
        name=str(row.name),
        state=JobGroup.State(row.state).name.lower(),
        created_at=row.created_at,
        sealed_at=row.sealed_at,
        canceled_at=row.canceled_at,
        ended_at=row.ended_at,
        if_failed=None if row.if_failed is None else JobGroup.IfFailed(row.if_failed).name.lower(),
        **counts,
    )


def still_read(group_ids: Collection[int], using: str) -> set[int]:
    """Those of the groups that have not ended, or whose callbacks have not: results of their members are needed."""
    rows = JobGroup.objects.using(using).filter(pk__in=sorted(group_ids))
    found = {group_id for group_id, state in rows.values_list("pk", "state") if state != JobGroup.State.ENDED}
    ended = rows.exclude(pk__in=found).filter(callbacks__isnull=False)
    added = {job_id: pk for pk, callbacks in ended.values_list("pk", "callbacks") for job_id in added_jobs(callbacks)}
    live = Job.objects.using(using).filter(pk__in=sorted(added), status__in=(Job.Status.READY, Job.Status.PROCESSING))
    return found | {added[job_id] for job_id in (live.values_list("pk", flat=True) if added else ())}


def results_of(group_id: int, using: str) -> Iterator[JSON]:
    """The results of the members that are DONE, in the order in which they were added, read by the thousand.

    Raises InvalidValue if one is missing: members may be deleted after the group and its callbacks have ended, and a
    callback that is run again then must not take the rest for all.
    """
    after, count = 0, 0
    members = GroupMember.objects.using(using).filter(group_id=group_id, state=State.DONE)
    while True:
        ids = list(members.filter(job_id__gt=after).order_by("job_id").values_list("job_id", flat=True)[:_PAGE])
        found = dict(Job.objects.using(using).filter(pk__in=ids).values_list("pk", "result"))
        for job_id in ids:
            if job_id not in found:
                raise _incomplete(group_id, f"job {job_id} was deleted")
            yield found[job_id]
        count += len(ids)
        if len(ids) < _PAGE:
            break
        after = ids[-1]
    group = JobGroup.objects.using(using).filter(pk=group_id).values_list("state", "done").first()
    if group is None or (group[0] == JobGroup.State.ENDED and count < (group[1] or 0)):
        raise _incomplete(group_id, "the group is so old that its members are deleted")


def _incomplete(group_id: int, why: str) -> InvalidValue:
    return InvalidValue(
        f"results() of the group {group_id} cannot give all results: {why}. Run the callback without them, or keep "
        "DONE jobs for longer with RETENTION, and groups with GROUP_RETENTION_SECONDS."
    )
