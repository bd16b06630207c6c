"""How many members of groups have ended, and how: index entries, counted up to a cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from django.db.models import BigIntegerField

from jobqueue.db import vendor
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import TinyIntegerField
from jobqueue.db.prepared import Prepared, prepare_count
from jobqueue.models import GroupMember, JobGroup

State = GroupMember.State
#: members of one state are counted up to this, in a list and on the page of one group
LIST_MAX, PAGE_MAX = 1000, 10_000
_NAMES = {State.OUTSTANDING: "outstanding", State.DONE: "done", State.FAILED: "failed", State.CANCELED: "canceled"}


@dataclass(slots=True)
class Counts:
    """The members of one group by state. `most`: counts stop there; None: all of them are exact."""

    outstanding: int = 0
    done: int = 0
    failed: int = 0
    canceled: int = 0
    most: int | None = None

    @property
    def total(self) -> int:
        """All members, or at least so many."""
        return self.outstanding + self.done + self.failed + self.canceled

    @property
    def capped(self) -> bool:
        """Whether there are more than the counts say."""
        most = self.most
        return most is not None and max(self.outstanding, self.done, self.failed, self.canceled) >= most


def counts_of(groups: Sequence[JobGroup], using: str, most: int) -> dict[int, Counts]:
    """The counts of each of these groups, by id. A group that has ended has the counts written at its end."""
    found = {group.pk: _written(group) for group in groups}
    live = [group.pk for group in groups if group.state != JobGroup.State.ENDED]
    for group_id in live:
        found[group_id] = Counts(most=most)
    runs = [{"group_id": group_id, "state": int(state)} for group_id in live for state in _NAMES]
    for count, group_id, state in _counted(using, most).seek_each(runs, 20) if runs else ():
        if count:
            setattr(found[group_id], _NAMES[State(state)], count)
    return found


def _written(group: JobGroup) -> Counts:
    done, failed, canceled = (count or 0 for count in (group.done, group.failed, group.canceled))
    return Counts(max(0, (group.total or 0) - done - failed - canceled), done, failed, canceled)


@cache
def _counted(using: str, most: int) -> Prepared:
    rows = GroupMember.objects.using(using).filter(
        group_id=Slot("group_id", BigIntegerField()), state=Slot("state", TinyIntegerField())
    )
    ordered = vendor(using).force_index(rows.order_by("job_id"), "ix_group_member")
    return prepare_count(ordered.values_list("group_id", "state")[:most], "group_id", "state")
