"""The results of the parents of the running job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobqueue.exceptions import InvalidValue
from jobqueue.models import GroupMember, GroupParent, Job
from jobqueue.payload import JSON

State = GroupMember.State


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
