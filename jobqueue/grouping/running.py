"""The group of the running job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobqueue.compat import AnyTask
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.members import (
    Group,
    MemberFailure,
    add_members,
    callback_of,
    failures_of,
    group_of,
    read_group,
    results_of,
    template,
)
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.payload import JSON

State = GroupMember.State


class RunningGroup:
    """The group that the running job is a member or a callback of: id, name, total, done, failed and canceled.

    Each look at a count reads the database; counts of a group that has not ended may lag.
    """

    def __init__(self, group_id: int, using: str) -> None:
        self.id, self._using = group_id, using

    def _read(self) -> Group:
        row = JobGroup.objects.using(self._using).filter(pk=self.id).first()
        if row is None:
            raise InvalidValue(f"the group {self.id} of this job does not exist any more: it was deleted.")
        return read_group(row, self._using)

    @property
    def name(self) -> str:
        """The name that the group was given."""
        return self._read().name

    @property
    def total(self) -> int:
        return self._read().total

    @property
    def done(self) -> int:
        return self._read().done

    @property
    def failed(self) -> int:
        return self._read().failed

    @property
    def canceled(self) -> int:
        return self._read().canceled

    @property
    def data(self) -> JSON:
        """What group(data=...) or workflow(data=...) was given; None without it."""
        return self._read().data

    def results(self) -> Iterator[JSON]:
        """The results of the members that are DONE, in the order in which they were added.

        By their names: groups.get(group.id).results().

        Raises InvalidValue if the job of one was deleted, as it may be after the callbacks of the group have ended.
        """
        return (result for _, _, result in results_of(self.id, self._using))

    def failures(self) -> Iterator[MemberFailure]:
        """The members that are FAILED or CANCELED, with their errors, in the order in which they were added."""
        return failures_of(self.id, self._using)

    def add(self, task: AnyTask, *args: JSON, **kwargs: JSON) -> int:
        """Add a member to the group, which does not end before it has ended; the job's id.

        In the caller's transaction, if there is one. Raises InvalidValue if the group has ended, as for its callbacks,
        or was canceled, and what enqueue() raises. Nothing was written then.
        """
        job = template(task, list(args), dict(kwargs), self._using)
        return add_members(self.id, [job], using=self._using)[0]


def group_of_job(options: Any, using: str) -> RunningGroup | None:
    """The group of a job with these options; None if it has none."""
    found = group_of(options) or callback_of(options)
    return None if found is None else RunningGroup(found, using)


class Parents(Mapping[str, JSON]):
    """The results of the parents of a node by the names of the nodes, read at the first look; empty for other jobs.

    A name that no parent has raises KeyError, one of a parent without a result InvalidValue: it is FAILED or CANCELED,
    which states() tells, or its job was deleted.
    """

    def __init__(self, job_id: int, using: str) -> None:
        self._job_id, self._using = job_id, using
        self._ids: dict[str, int] | None = None
        self._states: dict[str, str] = {}
        self._results: dict[int, JSON] = {}

    def __getitem__(self, name: str) -> JSON:
        job_id = self._read()[name]
        if job_id not in self._results:
            state = self._states[name]
            why = f"it is {state.upper()}" if state != "done" else f"its job {job_id} was deleted"
            raise InvalidValue(f"the parent {name!r} has no result: {why}. Look at parents.states() first.")
        return self._results[job_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def states(self) -> dict[str, str]:
        """Map each parent's name to "done", "failed", "canceled", or "outstanding" if it runs again."""
        self._read()
        return dict(self._states)

    def _read(self) -> dict[str, int]:
        if self._ids is None:
            pairs = GroupParent.objects.using(self._using).filter(child_id=self._job_id)
            ids = list(pairs.order_by("pk").values_list("parent_id", flat=True))
            nodes = {}
            if ids:
                rows = GroupMember.objects.using(self._using).filter(pk__in=ids).values_list("pk", "name", "state")
                nodes = {job_id: (str(name), State(state).name.lower()) for job_id, name, state in rows}
            done = [job_id for job_id, (_, state) in nodes.items() if state == "done"]
            if done:
                jobs = Job.objects.using(self._using).filter(pk__in=done)
                self._results = dict(jobs.values_list("pk", "result"))
            self._states = {nodes[job_id][0]: nodes[job_id][1] for job_id in ids if job_id in nodes}
            self._ids = {nodes[job_id][0]: job_id for job_id in ids if job_id in nodes}
        return self._ids
