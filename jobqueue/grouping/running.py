"""The group of the running job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobqueue.compat import AnyTask
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.callbacks import template
from jobqueue.grouping.marks import callback_of, group_of
from jobqueue.grouping.members import add_members
from jobqueue.grouping.reading import Group, read_group, results_of
from jobqueue.models import JobGroup
from jobqueue.payload import JSON


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
        """How many members it has."""
        return self._read().total

    @property
    def done(self) -> int:
        """How many members are DONE."""
        return self._read().done

    @property
    def failed(self) -> int:
        """How many members are FAILED."""
        return self._read().failed

    @property
    def canceled(self) -> int:
        """How many members are CANCELED."""
        return self._read().canceled

    def results(self) -> Iterator[JSON]:
        """The results of the members that are DONE, in the order in which they were added.

        Raises InvalidValue if the job of one was deleted, as it may be after the callbacks of the group have ended.
        """
        return results_of(self.id, self._using)

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
