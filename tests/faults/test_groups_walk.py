"""A process that seals a group or ends its last member is killed at any moment: callbacks are added once."""

from __future__ import annotations

from functools import partial

import pytest

from jobqueue import group, groups
from jobqueue.conf import load
from jobqueue.maintenance import sweeps
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.transitions import ack_many, claim, reap
from tests.app import tasks
from tests.factories import expire
from tests.faults.cuts import before_first, each_cut, killed
from tests.marks import committed
from tests.settings import FULL

#: `make prove` walks each moment
STRIDE = 1 if FULL else 13

pytestmark = committed


def begin(opened):
    """An open group of two members that run; their leases, and the group."""
    for model in (Job, JobGroup, GroupMember):
        model.objects.all().delete()
    with group("walk", on_success=tasks.group_succeeded, on_failure=tasks.group_failed, chunk_size=2) as g:
        g.add_many(tasks.add, [(1, 2), (3, 4)])
    if opened:
        JobGroup.objects.update(state=JobGroup.State.OPEN, sealed_at=None)
    return claim("default", 2, worker="w"), g.id


def finish(leases, number):
    """What ends a group: the acks of its last members, and seal()."""
    ack_many(leases)
    groups.seal(number)


def repair():
    """What other workers do afterwards: they reap, run what is READY, and sweep."""
    expire(*Job.objects.filter(status=Job.Status.PROCESSING).values_list("pk", flat=True))
    reap()
    ack_many(claim("default", 10, worker="other"))
    sweeps.GroupSweep().sweep_all(load(), using="default")


@pytest.mark.parametrize("opened", [False, True], ids=["sealed", "open"])
@each_cut
def test_wherever_it_is_cut_the_callback_is_enqueued_once(cut, opened, figure):
    number, cuts = before_first(STRIDE), 0
    while True:
        number += STRIDE
        leases, group_id = begin(opened)
        stopped = cut(number, partial(finish, leases, group_id))
        found = groups.get(group_id)
        callbacks = Job.objects.filter(task="tests.app.tasks.group_succeeded").count()
        assert callbacks == (found.state == "ended"), f"cut at moment {number}"
        repair()
        if opened and groups.get(group_id).state == "open":
            groups.seal(group_id)
        repair()
        assert groups.get(group_id).state == "ended", f"after moment {number}"
        assert Job.objects.exclude(task="tests.app.tasks.add").count() == 1, f"after moment {number}"
        if not stopped:
            break
        cuts += 1
    assert number > 10
    figure(f"moments at which it was {cut.__name__}", cuts)


def test_wherever_a_chunked_block_is_killed_the_group_has_whole_chunks_and_can_be_sealed(figure):
    number, cuts = before_first(STRIDE), 0

    def make():
        with group("chunks", on_success=tasks.group_succeeded, chunk_size=2) as g:
            g.add_many(tasks.add, [(1, 2)] * 5)

    while True:
        number += STRIDE
        for model in (Job, JobGroup, GroupMember):
            model.objects.all().delete()
        stopped = killed(number, make)
        members = {*GroupMember.objects.values_list("job_id", flat=True)}
        assert {*Job.objects.values_list("pk", flat=True)} == members
        assert len(members) in (0, 2, 4, 5)
        if (found := JobGroup.objects.first()) is not None:
            groups.seal(found.pk)
            ack_many(claim("default", 10, worker="w"))
            assert groups.get(found.pk).state == "ended"
            assert Job.objects.filter(task="tests.app.tasks.group_succeeded").count() == 1
        if not stopped:
            break
        cuts += 1
    assert number > 10
    figure("moments at which a chunked block was killed", cuts)
