"""The rows that explanations are made of: jobs, and what operators have set for their queue. Index seeks only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from jobqueue.db.clock import Selected, UtcNow
from jobqueue.gates.rules import Rules, rules_from
from jobqueue.models import FlowRule, Job

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    class Facts(TypedDict):
        """What read_jobs() adds to a row."""

        now: datetime

    ReadJob = WithAnnotations[Job, Facts]
else:
    ReadJob = Job

#: rows of job_flow that are read for one queue
CONTROLS_MAX = 100_000
_LARGE = ("payload", "result", "last_error", "progress", "options")


@dataclass(frozen=True, slots=True)
class Place:
    """A queue at an instant of the database's clock, with what operators have set there."""

    queue: str
    using: str
    now: datetime
    #: by task; "" is the whole queue. Pauses that are over are among them: `rules` tells.
    controls: dict[str, FlowRule]
    rules: Rules


def read_jobs(ids: Sequence[int], using: str) -> list[ReadJob]:
    """The jobs with these ids, one at least, each with the database's time as `now`, without their large columns.

    One statement.
    """
    # A single one by equality: it may be a number that no column holds, which Django tells only there.
    wanted = {"pk__in": ids} if len(ids) > 1 else {"pk": ids[0]}
    return list(Job.objects.using(using).filter(**wanted).defer(*_LARGE).annotate(now=Selected(UtcNow())))


def read_place(queue: str, now: datetime, using: str, tasks: Collection[str | None] | None = None) -> Place:
    """What is set for `queue` and for these tasks in it; None: for any task. One statement."""
    rows = FlowRule.objects.using(using).filter(queue=queue)
    if tasks is not None:
        rows = rows.filter(task__in={"", *filter(None, tasks)})
    found = list(rows.order_by("queue", "task").annotate(now=Selected(UtcNow()))[:CONTROLS_MAX])
    return Place(queue, using, now, {row.task: row for row in found}, rules_from(found))


def unread_place(queue: str, now: datetime, using: str) -> Place:
    """`queue` as if operators had set nothing: for those who have no time to read that. No statement."""
    return Place(queue, using, now, {}, rules_from([]))


def read_places(queues: Collection[str], now: datetime, using: str) -> dict[str, Place]:
    """What is set for each of these queues, at most CONTROLS_MAX rows of all of them. One statement."""
    rows = FlowRule.objects.using(using).filter(queue__in=queues).order_by("queue", "task")
    found = list(rows.annotate(now=Selected(UtcNow()))[:CONTROLS_MAX])
    rules = rules_from(found)
    controls: dict[str, dict[str, FlowRule]] = {queue: {} for queue in queues}
    for row in found:
        controls[row.queue][row.task] = row
    return {queue: Place(queue, using, now, own, rules) for queue, own in controls.items()}
