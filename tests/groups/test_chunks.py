"""group(chunk_size=): members are committed by so many, and none is lost when a chunk is refused."""

from __future__ import annotations

import pytest
from django.db import transaction

from jobqueue import group, groups, transitions
from jobqueue.exceptions import InsideTransaction, InvalidType, InvalidValue, OutcomeUnknown, QueueFull
from jobqueue.grouping import members
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.producer import back_pressure
from tests.app import tasks
from tests.groups.helpers import callbacks, claimed
from tests.marks import finding

pytestmark = pytest.mark.django_db


def arguments():
    """The first arguments of the members, in order."""
    ids = GroupMember.objects.order_by("pk").values_list("pk", flat=True)
    return [Job.objects.get(pk=job_id).payload["args"][0] for job_id in ids]


def count_again():
    """Let a second pass: producers count the jobs that wait once in that time."""
    back_pressure._backlogs._known.clear()


def test_chunks_are_refused_inside_a_transaction():
    with transaction.atomic(), pytest.raises(InsideTransaction), group("big", chunk_size=2):
        pass
    assert not JobGroup.objects.exists()


def test_chunks_are_committed_and_their_members_run_meanwhile():
    with group("big", on_done=tasks.group_done, chunk_size=2) as g:
        g.add_many(tasks.add, ((number, 1) for number in range(5)))
        assert Job.objects.count() == 4
        assert groups.get(g.id).state == "open"
        transitions.ack_many(claimed(4))
        assert callbacks() == []
    assert Job.objects.count() == 5
    assert groups.get(g.id).state == "sealed"
    transitions.ack_many(claimed(1))
    assert callbacks() == ["group_done"]


def test_a_chunked_block_that_raises_leaves_the_group_open():
    def make():
        with group("big", on_failure=tasks.group_failed, chunk_size=1) as g:
            g.add(tasks.add, 1, 2)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        make()
    g = JobGroup.objects.get()
    assert groups.get(g.id).state == "open"
    transitions.ack_many(claimed(1))
    assert callbacks() == []
    assert [groups.seal(g.id), groups.seal(g.id)] == [True, False]
    assert groups.get(g.id).state == "ended"


@finding("S-A3")
def test_members_that_were_added_are_in_the_group_although_a_full_queue_refused_a_later_one(settings):
    settings.JOBQUEUE = {"QUEUES": {"default": {"MAX_READY": 5}}}
    refused = 0
    with group("big", on_success=tasks.group_succeeded, chunk_size=5) as g:
        for number in range(20):
            try:
                g.add(tasks.add, number, 1)
            except QueueFull:
                refused += 1
                transitions.ack_many(claimed(10))
                count_again()
                g.add(tasks.add, number, 1)
        count_again()
    assert refused == 3
    transitions.ack_many(claimed(10))
    assert arguments() == [*range(20)]
    assert callbacks() == ["group_succeeded"]


@finding("S-A3")
def test_what_waits_for_its_chunk_is_written_at_the_end_after_a_member_was_refused(settings):
    settings.JOBQUEUE = {"QUEUES": {"default": {"MAX_READY": 2}}}
    with group("big", chunk_size=2) as g:
        g.add_many(tasks.add, [(0, 1), (1, 1), (2, 1)])
        with pytest.raises(QueueFull):
            g.add(tasks.add, 3, 1)
        transitions.ack_many(claimed(2))
        count_again()
    assert arguments() == [0, 1, 2]


def test_a_chunk_that_no_full_queue_will_ever_take_is_refused_with_the_size_that_fits(settings):
    settings.JOBQUEUE = {"QUEUES": {"default": {"MAX_READY": 2}}}
    with pytest.raises(QueueFull, match="Add at most 2 at once, also as a chunk_size"), group("x", chunk_size=3) as g:
        g.add_many(tasks.add, [(0, 1), (1, 1), (2, 1)])


@finding("S-A3")
@pytest.mark.parametrize("size", [2, 3, 10])
def test_a_held_dedupe_key_is_refused_at_its_own_add(size):
    keyed = [tasks.add.using(dedupe_key=f"k{number}") for number in range(5)]
    keyed[2].enqueue(0, 0)
    with group("keys", chunk_size=size) as g:
        for number in range(5):
            if number == 2:
                with pytest.raises(InvalidValue, match="dedupe key"):
                    g.add(keyed[2], 2, 1)
            else:
                g.add(keyed[number], number, 1)
        with pytest.raises(InvalidValue, match="dedupe key"):
            g.add(keyed[4], 5, 1)
    assert arguments() == [0, 1, 3, 4]


@finding("S-A3")
def test_add_many_says_how_many_of_its_calls_were_added():
    calls = [(number, 1) for number in range(5)]
    with group("big", chunk_size=2) as g:
        g.add(tasks.add, 100, 1)
        with pytest.raises(InvalidType, match=r"calls\[5\].*It was not added") as caught:
            g.add_many(tasks.add, [*calls, 5])
    assert caught.value.__notes__ == [f"The first 4 of the calls were added to the group {g.id}, the others were not."]
    assert arguments() == [100, 0, 1, 2, 3]


def test_a_chunk_that_may_have_been_committed_is_not_written_twice(monkeypatch):
    add_members = members.add_members

    def unanswered(*args, **kwargs):
        add_members(*args, **kwargs)
        raise OutcomeUnknown

    with group("big", chunk_size=2) as g:
        g.add(tasks.add, 0, 1)
        with monkeypatch.context() as patch:
            patch.setattr(members, "add_members", unanswered)
            with pytest.raises(OutcomeUnknown):
                g.add(tasks.add, 1, 1)
        g.add(tasks.add, 2, 1)
    assert arguments() == [0, 1, 2]


@finding("S-B1")
def test_a_key_that_is_held_in_another_queue_is_free_in_that_of_the_member():
    keyed = tasks.add.using(dedupe_key="order-9")
    keyed.using(queue_name="billing").enqueue(9, 1)
    with group("orders", chunk_size=3) as g:
        g.add(tasks.add.using(queue_name="billing"), 1, 1)
        g.add(keyed.using(queue_name="shipping"), 2, 1)
        g.add(keyed.using(queue_name="mail"), 3, 1)
    assert arguments() == [1, 2, 3]
    assert [*Job.objects.order_by("pk").values_list("queue", flat=True)] == ["billing", "billing", "shipping", "mail"]
