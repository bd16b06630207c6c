"""The end of members, and of the group with its last member: one transaction finds that it is the last, and no other.

A transaction that has ended members looks for another outstanding one that nobody has locked, and keeps it locked until
its commit: so whoever ends that one comes later and looks itself. Only a transaction that finds none locks the row of
the group, and looks again. A member that another transaction has locked is then taken for outstanding: that transaction
looks after this one's commit, because it has to wait for the row of the group. So the last one to commit sees that
nothing is left, whatever the isolation level. A process that dies in between has committed nothing.

A lease knows from its claim whether nodes wait for the job. Nodes that were added behind it since are noted in the row
of the member (late_children), which the write of its end then leaves out: their decision comes first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TypeAlias

from django.db import connections, transaction
from django.db.models import BigIntegerField, Count, F, IntegerField, QuerySet
from django.db.models.lookups import Exact

from jobqueue.db import vendor
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import AnyOf, Keys, Slot, Unindexed
from jobqueue.db.prepared import Prepared, prepare_change, prepare_rows
from jobqueue.exceptions import InvalidValue
from jobqueue.grouping.members import jobs_of, with_jobs
from jobqueue.grouping.nodes import newest, parents_again
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.producer.enqueueing import add_unlimited
from jobqueue.signals import group_ended

logger = logging.getLogger("jobqueue.worker")
State = GroupMember.State
#: what becomes of a member whose job has this state
STATE_OF = {
    Job.Status.DONE: State.DONE,
    Job.Status.FAILED: State.FAILED,
    Job.Status.CANCELED: State.CANCELED,
}
#: job ids, by group and by the state in which they have ended
Ends: TypeAlias = Mapping[int, Mapping[int, Sequence[int]]]
_INDEX = "ix_group_member"


def write_ends(ends: Ends, decided: Collection[int], using: str) -> tuple[set[int], Ends]:
    """Write the ends of members in the transaction that ends their jobs.

    Returns the groups of those that were outstanding, for end_groups(), and the ends that were not written: those of
    nodes with late children. Their rows are locked; decide the children, and write them with their ids in `decided`.
    """
    changed, late = set[int](), dict[int, dict[int, list[int]]]()
    for group_id, by_state in sorted(ends.items()):
        for state, ids in sorted(by_state.items()):
            first = sorted({*ids} - {*decided}) if decided else sorted(ids)
            count = _ending(using).change(ids=first, state=int(state)) if first else 0
            # A repeated transaction has found them ended: it was committed without an answer, with all that follows.
            if count < len(first) and (found := _with_late_children(first, using)):
                late.setdefault(group_id, {})[state] = found
            if len(first) < len(ids):
                count += _outstanding_by_key({*ids} & {*decided}, using).update(state=state)
            if count:
                changed.add(group_id)
    return changed, late


def end_groups(group_ids: Iterable[int], using: str) -> None:
    """End those of the groups that have no outstanding member, in the transaction that has ended some.

    After all members, and in one order: who waits for the row of a group holds no lock that its holder needs.
    """
    for group_id in sorted(group_ids):
        if not _free(using).rows(group_id=group_id):
            end_if_last(group_id, using)


@cache
def _ending(using: str) -> Prepared:
    # Found by their key alone, so that no other rows are locked.
    by_key = GroupMember.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    rows = by_key.filter(Exact(Unindexed("state"), int(State.OUTSTANDING)), late_children=False)
    return prepare_change(rows, {"state": Slot("state", IntegerField())})


def _outstanding_by_key(ids: Collection[int], using: str) -> QuerySet[GroupMember]:
    by_key = GroupMember.objects.using(using).filter(pk__in=sorted(ids))
    return by_key.filter(Exact(Unindexed("state"), int(State.OUTSTANDING)))


def _with_late_children(ids: Collection[int], using: str) -> list[int]:
    rows = _outstanding_by_key(ids, using).filter(late_children=True).order_by("pk")
    return list(rows.select_for_update().values_list("pk", flat=True))


def outstanding(group_id: int | Slot, using: str) -> QuerySet[GroupMember]:
    """The members that have not ended, the newest first: workers take the oldest."""
    rows = GroupMember.objects.using(using).filter(group_id=group_id, state=State.OUTSTANDING).order_by("-job_id")
    return vendor(using).force_index(rows, _INDEX)


@cache
def _free(using: str) -> Prepared:
    """Another member that is outstanding, if nobody has locked one; this transaction locks it."""
    rows = outstanding(Slot("group_id", BigIntegerField()), using)
    with transaction.atomic(using=using):
        return prepare_rows(vendor(using).lock_rows(rows.values_list("pk"), 1))


def end_if_last(group_id: int, using: str) -> bool:
    """End a sealed group of which no member is outstanding, in the open transaction; whether this one has ended it."""
    group = JobGroup.objects.using(using).filter(pk=group_id).defer("data").select_for_update().first()
    if group is None or group.state != JobGroup.State.SEALED or _any_outstanding(group_id, using):
        return False
    return _end(group, using)


def _any_outstanding(group_id: int, using: str) -> bool:
    """Return whether a member is outstanding, or may be: one that is locked. Reads the newest rows, in any snapshot."""
    rows = outstanding(group_id, using)
    return newest(rows[:1], using, in_doubt=rows) != []


def _end(group: JobGroup, using: str) -> bool:
    members = GroupMember.objects.using(using).filter(group_id=group.pk)
    # The first is decided by a locking read: a snapshot may be older than the ends.
    wrong = (State.FAILED, State.CANCELED)
    bad = any(members.filter(state=state).order_by("job_id").select_for_update()[:1] for state in wrong)
    counts = _counts(group.pk, using)
    try:
        jobs = jobs_of(group, succeeded=not bad, using=using)
    except InvalidValue as error:
        # Not raised: it would take back the ends of the members, and of all jobs that end in the same transaction.
        _tell_once(group.pk, str(error))
        return False
    done, failed, canceled = (counts.get(state, 0) for state in (State.DONE, *wrong))
    total = sum(counts.values())
    sealed = JobGroup.objects.using(using).filter(pk=group.pk, state=JobGroup.State.SEALED)
    # The state again in the WHERE: not every database keeps the row locked.
    if not sealed.update(
        state=JobGroup.State.ENDED, ended_at=UtcNow(), total=total, done=done, failed=failed, canceled=canceled
    ):
        return False
    if jobs:
        ids = add_unlimited([*jobs.values()], using=using)
        # What they read is kept until they have ended.
        sealed = JobGroup.objects.using(using).filter(pk=group.pk)
        sealed.update(callbacks=with_jobs(group.callbacks, dict(zip(jobs, ids, strict=True))))
    facts = {"total": total, "done": done, "failed": failed, "canceled": canceled}
    send_after_commit(group_ended, JobGroup, group_id=group.pk, name=group.name, using=using, **facts)
    return True


@lru_cache(maxsize=1000)
def _tell_once(group_id: int, why: str) -> None:
    logger.error(
        "all members of the group %d have ended, but it has not: %s. A newer package may have made it. It stays "
        "sealed until a worker looks that can read it, which each does every 10 seconds; update the workers.",
        group_id,
        why,
    )


def _counts(group_id: int, using: str) -> dict[int, int]:
    """How many members have which state, whatever the snapshot of this transaction shows."""
    members = GroupMember.objects.using(using).filter(group_id=group_id)
    rows = members.order_by().values_list("state").annotate(jobs=Count("pk"))
    sql, params = rows.query.get_compiler(using).as_sql()
    with connections[using].cursor() as cursor:
        # Nobody has locked one of them: the last has ended, and the row of the group is locked.
        cursor.execute(f"{sql} {vendor(using).shared_lock_sql}", params)
        return dict(cursor.fetchall())


def outstanding_again(job_ids: Sequence[int], group_id: int, using: str) -> None:
    """Members whose jobs are to run again, in the open transaction. A group that has ended stays as it is."""
    groups = JobGroup.objects.using(using).filter(pk=group_id).select_for_update()
    states = list(groups.values_list("state", flat=True))
    if states and states[0] != JobGroup.State.ENDED:
        GroupMember.objects.using(using).filter(pk__in=sorted(job_ids)).update(state=State.OUTSTANDING)
        parents_again(job_ids, using)
