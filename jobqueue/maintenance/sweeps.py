"""Sweeps of what a crash or plain SQL has left: ordering keys that stalled, and groups that nobody has ended.

Our own verbs leave no group to repair, but a program that speaks plain SQL knows no groups, and may end or delete a
member's job.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from functools import partial

from django.db import connections

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.grouping.ends import STATE_OF, end_if_last, outstanding
from jobqueue.grouping.nodes import undecided
from jobqueue.locks.lease import Turn
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.ordering import lanes
from jobqueue.ordering.lanes import LOWEST
from jobqueue.ordering.promote import sweep
from jobqueue.transitions.canceling import cancel_members
from jobqueue.transitions.dependants import decide_nodes, end_with_dependants

#: the worker that holds this lease lock sweeps for all workers of the database
LOCK_NAME = "jobqueue: ordering sweep"
# When the process of that worker dies, another one sweeps after this time.
LOCK_SECONDS = 5.0


class OrderingSweep:
    """Sweeps a thousand lanes per call, round after round; called every second.

    One worker sweeps; the others try again when its lease lock has ended. The lock only saves work: two sweeps at the
    same time do no harm.
    """

    def __init__(self) -> None:
        self._after: int | None = None
        self._turn = Turn(LOCK_NAME, LOCK_SECONDS)

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Sweep the next lanes: one index seek without ordering keys, two where another worker sweeps."""
        if not retry_transient("promote", partial(lanes.active, LOWEST, using=using, limit=1), using=using):
            self._turn.leave()
            self._after = None
            return Counter()
        if not self._turn.hold(using):
            self._after = None
            return Counter()
        return Counter(jobs_opened=self._sweep_next(using))

    def sweep_all(self, settings: Settings, *, using: str, seconds: float = math.inf) -> Counter[str]:
        """Sweep all lanes for about `seconds`, whether another process does or not; the next call goes on there."""
        end, opened = time.monotonic() + seconds, self._sweep_next(using)
        while self._after is not None and time.monotonic() < end:
            opened += self._sweep_next(using)
        return Counter(jobs_opened=opened)

    def _sweep_next(self, using: str) -> int:
        opened, self._after = sweep(LOWEST if self._after is None else self._after, using=using)
        return opened


#: groups of one pass, and members of one look; the rest follows in the next passes
_GROUPS, _MEMBERS = 100, 1000


class GroupSweep:
    """Looks at groups that have not ended, oldest first, and at a thousand outstanding members of each per pass.

    Reads that lock nothing, unless there is something to repair; any number of processes may sweep.
    """

    def __init__(self) -> None:
        self._after = 0
        #: by group: the member down to which its members were looked at
        self._looked: dict[int, int] = {}
        #: the groups of the present round
        self._met = set[int]()

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Sweep the next groups."""
        live = JobGroup.objects.using(using).filter(
            state__in=(JobGroup.State.OPEN, JobGroup.State.SEALED), pk__gt=self._after
        )
        rows = live.order_by("pk").values_list("pk", "state", "canceled_at", "if_failed")[:_GROUPS]
        read: partial[list[tuple[int, int, object, int | None]]] = partial(list, rows)
        groups = retry_transient("housekeeping", read, using=using)
        self._after = groups[-1][0] if len(groups) == _GROUPS else 0
        done = Counter[str]()
        for group_id, state, canceled_at, if_failed in groups:
            done += self._sweep(group_id, if_failed is not None, using)
            if canceled_at is not None:
                cancel_members(group_id, using=using)
            if state == JobGroup.State.SEALED and self._end(group_id, using):
                done["groups_ended"] += 1
        self._met |= {group_id for group_id, *_ in groups}
        if not self._after:
            # Those that this round has not met have ended.
            self._looked = {group_id: at for group_id, at in self._looked.items() if group_id in self._met}
            self._met.clear()
        return done

    def sweep_all(self, settings: Settings, *, using: str, seconds: float = math.inf) -> Counter[str]:
        """Sweep all groups that have not ended, and up to _GROUPS thousand outstanding members of each.

        For about `seconds`; the next call goes on there.
        """
        done, end = Counter[str](), time.monotonic() + seconds
        for _ in range(_GROUPS):
            done += self.run_once(settings, using=using)
            if not self.more or time.monotonic() >= end:
                break
        return done

    @property
    def more(self) -> bool:
        """True if the last pass has left groups or members for the next one."""
        return bool(self._after or self._looked)

    def _sweep(self, group_id: int, has_nodes: bool, using: str) -> Counter[str]:
        rows = outstanding(group_id, using)
        if group_id in self._looked:
            rows = rows.filter(job_id__lt=self._looked[group_id])
        some = rows.values_list("job_id", flat=True)[:_MEMBERS]
        ids: list[int] = retry_transient("housekeeping", partial(list, some), using=using)
        if len(ids) == _MEMBERS:
            self._looked[group_id] = ids[-1]
        else:
            self._looked.pop(group_id, None)
        live = (Job.Status.READY, Job.Status.PROCESSING)
        states = Job.objects.using(using).filter(pk__in=ids).values_list("pk", "status")
        known: dict[int, int] = dict(retry_transient("housekeeping", partial(list, states), using=using))
        done = Counter[str]()
        if wrong := [job_id for job_id in ids if known.get(job_id) not in live]:
            done += retry_transient("housekeeping", partial(_repair, group_id, wrong, using), using=using)
        if has_nodes and (late := retry_transient("housekeeping", partial(undecided, ids, using), using=using)):
            done += retry_transient("housekeeping", partial(_decide, group_id, late, using), using=using)
        return done

    def _end(self, group_id: int, using: str) -> bool:
        if retry_transient("housekeeping", outstanding(group_id, using).exists, using=using):
            return False

        def end() -> bool:
            with vendor(using).transaction(connections[using]):
                return end_if_last(group_id, using)

        return retry_transient("housekeeping", end, using=using)


def _repair(group_id: int, job_ids: list[int], using: str) -> Counter[str]:
    """End members as their jobs have ended; one whose job was deleted is CANCELED."""
    before = JobGroup.objects.using(using).filter(pk=group_id, state=JobGroup.State.ENDED)
    with vendor(using).transaction(connections[using]):
        # Locked: a retry would make the job READY again.
        rows = Job.objects.using(using).filter(pk__in=job_ids).order_by("pk").select_for_update()
        known = dict(rows.values_list("pk", "status"))
        ends: dict[int, list[int]] = {}
        for job_id in job_ids:
            if (status := known.get(job_id, Job.Status.CANCELED)) in STATE_OF:
                ends.setdefault(STATE_OF[Job.Status(status)], []).append(job_id)
        end_with_dependants({group_id: ends}, {*job_ids}, using)
        ended = sum(map(len, ends.values()))
    return Counter(groups_members_ended=ended, groups_ended=int(bool(ended) and before.exists()))


def _decide(group_id: int, nodes: list[int], using: str) -> Counter[str]:
    """Decide nodes whose parents have all ended, as after a cancel of very many, or a retry in that moment."""
    with vendor(using).transaction(connections[using]):
        canceled = decide_nodes(group_id, nodes, using)
        end_with_dependants({group_id: {GroupMember.State.CANCELED: canceled}} if canceled else {}, (), using)
    return Counter(groups_members_ended=len(canceled))
