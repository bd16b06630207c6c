"""The group of the running job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON
from jobqueue.base.validation import check_group_name, check_list
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.grouping.members import (
    Group,
    MemberFailure,
    add_members,
    callback_of,
    failures_of,
    group_of,
    is_node,
    read_group,
    results_of,
    template,
)
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.transitions.adding import AddedNode, NodesAddedBefore, add_node
from jobqueue.transitions.leases import Lease

State = GroupMember.State


class RunningGroup:
    """The group that the running job is a member or a callback of: id, name, total, done, failed and canceled.

    Each look at a count reads the database; counts of a group that has not ended may lag.
    """

    def __init__(self, group_id: int, using: str, lease: Lease | None = None) -> None:
        self.id, self._using = group_id, using
        #: of a node of a workflow
        self._lease = lease
        self._before: NodesAddedBefore | None = None

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

    def add(
        self, task: AnyTask, *args: JSON, name: str | None = None, after: Iterable[str | int] = (), **kwargs: JSON
    ) -> int:
        """Add a member to the group, which does not end before it has ended; the job's id.

        In a workflow it is a node, which runs when all nodes of `after` have ended: names, or ids that add() has
        returned. The nodes that wait for this one wait for it too, but for those that this one has added. `name` is
        that of the task's function, with -2, -3 and so on when it is taken. A job that runs again gets the nodes that
        its earlier runs have added: by `name`, or without one by task and arguments.

        In the caller's transaction, if there is one. Raises InvalidValue if the group has ended, as for its callbacks,
        or was canceled, for a name that is taken, an unknown parent, and nodes that would wait for each other; in a
        workflow LeaseLost; and what enqueue() raises. Nothing was written then.
        """
        job = template(task, list(args), dict(kwargs), self._using)
        parents = _checked_parents(after)
        if self._lease is None:
            if name is not None or parents:
                raise InvalidValue(
                    "name= and after= are for nodes of a workflow, which this job is not. Nothing was written; leave "
                    "them out, and give the task's own arguments of these names by position."
                )
            return add_members(self.id, [job], using=self._using)[0]
        base = str(task.module_path).rpartition(".")[2]
        node = AddedNode(job, base, None if name is None else check_group_name(name, "node"), parents)
        if self._before is None:
            self._before = NodesAddedBefore(self._lease, self.id)
        return self._before.find(node) or add_node(self._lease, self.id, node)


def _checked_parents(after: Any) -> list[str | int]:
    if isinstance(after, str):
        raise InvalidType(f"after must be a list of nodes, got {after!r:.60}. Nothing was written; write after=[...].")
    check_list(after, "after", Iterable)
    found = list(after)
    for one in found:
        if not isinstance(one, (str, int)) or isinstance(one, bool):
            raise InvalidType(
                f"after has names of nodes, or ids that add() has returned, got {type(one).__name__}. Nothing was "
                "written."
            )
    return found


def group_of_job(lease: Lease) -> RunningGroup | None:
    """The group of the job that runs under this lease; None if it has none."""
    found = group_of(lease.options)
    if found is not None:
        return RunningGroup(found, lease.using, lease if is_node(lease.options) else None)
    found = callback_of(lease.options)
    return None if found is None else RunningGroup(found, lease.using)


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
