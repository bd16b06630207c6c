"""workflow(): nodes that run after their parents, and what becomes of them when a parent does not end well."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import groups, transitions, workflow
from jobqueue.conf import load
from jobqueue.context.running_group import Parents
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.exceptions import InvalidType, InvalidValue, QueueFull, WrongArguments, WrongDatabase
from jobqueue.explain import explain_job, explain_queue
from jobqueue.maintenance import cleaner, sweeps
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.testing import drain, travel
from tests.app import tasks
from tests.groups.helpers import callbacks, claimed
from tests.groups.nodes import CALLBACKS, diamond, job, states
from tests.marks import finding

pytestmark = pytest.mark.django_db


def fail(name):
    """Let the node fail for good; it must be due."""
    Job.objects.filter(pk=job(name).pk).update(max_attempts=1, priority=9)
    (lease,) = claimed()
    assert lease.job_id == job(name).pk
    transitions.fail(lease, error="wrong")


def finish(count=1):
    for lease in claimed(count):
        transitions.ack(lease, result=7)


def test_a_node_runs_after_all_its_parents():
    number = diamond()
    assert len(claimed(5)) == 1
    assert job("left").wait_reason == job("bottom").wait_reason == "parents"
    Job.objects.update(locked_by=None, lock_token=None, locked_at=None, lock_until=None, status=0)
    finish()
    left, right = claimed(5)
    transitions.ack(left)
    assert claimed(5) == []
    transitions.ack(right)
    assert job("bottom").gate == 0
    assert job("bottom").wait_reason is None
    finish()
    assert callbacks() == ["group_succeeded", "group_done"]
    found = groups.get(number)
    assert (found.state, found.total, found.done, found.if_failed) == ("ended", 4, 4, "cancel")


def test_parents_that_end_in_one_batch_open_their_child_once():
    diamond()
    finish()
    assert transitions.ack_many(claimed(2)) == []
    assert [lease.job_id for lease in claimed(5)] == [job("bottom").pk]


def test_drain_runs_dependants_with_the_results_of_their_parents():
    diamond()
    assert drain().ok == 6
    assert job("bottom").result == {"left": 3, "right": 3}


def test_a_node_falls_due_when_its_parents_have_ended():
    diamond()
    before = job("left").run_at
    finish()
    assert job("left").run_at > before


def test_the_time_within_which_a_node_must_start_counts_from_the_start():
    wf = workflow("expires")
    wf.add(tasks.add.using(expires=60), 1, 1, name="soon")
    with travel(3600):
        wf.start()
        left = job("soon").expires_at - read_now("default")
    assert timedelta(seconds=50) < left <= timedelta(seconds=60)


def test_a_node_keeps_a_later_time_of_its_own():
    future = (read_now("default") + timedelta(hours=1)).replace(microsecond=0)
    wf = workflow("later")
    top = wf.add(tasks.add, 1, 1)
    wf.add(tasks.add.using(run_after=future), 1, 2, after=[top], name="later")
    wf.start()
    finish()
    assert (job("later").run_at, job("later").wait_reason, job("later").gate) == (future, "scheduled", 0)


def test_the_children_of_a_failed_node_are_canceled():
    number = diamond()
    fail("top")
    assert states() == {"top": "FAILED", "left": "CANCELED", "right": "CANCELED", "bottom": "CANCELED"}
    assert callbacks() == ["group_failed", "group_done"]
    assert (groups.get(number).failed, groups.get(number).canceled) == (1, 3)


def test_others_go_on_when_a_node_fails():
    diamond()
    finish()
    fail("left")
    assert states() == {"top": "DONE", "left": "FAILED", "right": "READY", "bottom": "READY"}
    finish()
    assert states()["bottom"] == "CANCELED"


def test_with_continue_a_node_runs_after_a_failed_parent_and_can_tell():
    diamond("continue")
    finish()
    fail("left")
    finish()
    (lease,) = claimed()
    assert lease.job_id == job("bottom").pk
    found = Parents(lease.job_id, "default")
    assert (found.states(), found["right"], list(found)) == ({"left": "failed", "right": "done"}, 7, ["left", "right"])
    with pytest.raises(InvalidValue, match=r"the parent 'left' has no result: it is FAILED"):
        found["left"]
    with pytest.raises(KeyError):
        found["top"]
    transitions.ack(lease)
    assert callbacks() == ["group_failed", "group_done"]


def test_with_hold_a_node_waits_for_a_retry_of_its_parent():
    number = diamond("hold")
    fail("top")
    assert claimed(5) == []
    assert (job("left").wait_reason, groups.get(number).state) == ("parents failed", "sealed")
    assert transitions.retry(job("top").pk)
    assert job("left").wait_reason == "parents"
    assert drain().ok == 6
    assert callbacks() == ["group_succeeded", "group_done"]


def test_a_retry_of_a_node_that_was_canceled_waits_for_its_parents():
    diamond()
    assert transitions.cancel(job("bottom").pk)
    assert transitions.retry(job("bottom").pk)
    assert (job("bottom").gate, job("bottom").wait_reason) == (4, "parents")
    assert drain().ok == 6


def test_canceling_a_parent_counts_as_its_failure():
    diamond()
    assert transitions.cancel(job("top").pk)
    assert states()["bottom"] == "CANCELED"


@pytest.mark.parametrize("if_failed", ["cancel", "continue", "hold"])
def test_a_workflow_that_is_canceled_ends(if_failed):
    number = diamond(if_failed)
    assert groups.cancel(number)
    assert groups.get(number).state == "ended"
    assert set(states().values()) == {"CANCELED"}
    assert callbacks() == ["group_failed", "group_done"]


def test_a_running_parent_that_ends_after_the_cancel_opens_nothing():
    number = diamond("continue")
    (lease,) = claimed()
    groups.cancel(number)
    transitions.ack(lease)
    assert states() == {"top": "DONE", "left": "CANCELED", "right": "CANCELED", "bottom": "CANCELED"}
    assert groups.get(number).state == "ended"


def test_resume_runs_what_did_not_end_well_and_the_callbacks_again():
    number = diamond()
    finish()
    fail("left")
    finish()
    assert callbacks() == ["group_failed", "group_done"]
    told = groups.resume(number, dry_run=True)
    assert (told.runs, told.waits, told.dry_run) == (("left",), ("bottom",), True)
    assert states()["left"] == "FAILED"
    assert groups.get(number).state == "ended"
    assert groups.resume(number).runs == ("left",)
    assert states() == {"top": "DONE", "left": "READY", "right": "DONE", "bottom": "READY"}
    assert (groups.get(number).state, groups.get(number).outstanding) == ("sealed", 2)
    drain()
    assert states()["bottom"] == "DONE"
    assert callbacks() == ["group_failed", "group_done", "group_succeeded", "group_done"]
    assert groups.resume(number) == groups.Resumed(number, (), (), False)


def test_resume_with_continue_runs_a_failed_child_after_its_failed_parent():
    wf = workflow("two", if_failed="continue")
    wf.add(tasks.add, 1, 1, name="child", after=["parent"])
    wf.add(tasks.add, 1, 1, name="parent")
    number = wf.start()
    fail("parent")
    fail("child")
    assert groups.resume(number).waits == ("child",)
    assert [lease.job_id for lease in claimed(5)] == [job("parent").pk]


def test_resume_of_a_held_workflow():
    number = diamond("hold")
    fail("top")
    assert groups.resume(number).runs == ("top",)
    assert drain().ok == 6


def test_resume_keeps_a_node_that_was_retried_by_hand_after_the_end_and_is_done():
    number = diamond()
    finish()
    fail("left")
    finish()
    assert transitions.retry(job("left").pk)
    finish()
    assert (groups.get(number).state, states()["left"]) == ("ended", "DONE")
    assert groups.resume(number) == groups.Resumed(number, ("bottom",), (), False)
    drain()
    assert states()["bottom"] == "DONE"
    assert (groups.get(number).done, callbacks()[2:]) == (4, ["group_succeeded", "group_done"])


def test_resume_waits_for_a_node_that_was_retried_by_hand_after_the_end_and_runs():
    number = diamond()
    finish()
    fail("left")
    finish()
    assert transitions.retry(job("left").pk)
    (lease,) = claimed()
    assert groups.resume(number) == groups.Resumed(number, ("left",), ("bottom",), False)
    assert (groups.get(number).outstanding, job("bottom").gate) == (2, 4)
    transitions.ack(lease)
    drain()
    assert (groups.get(number).done, groups.get(number).state) == (4, "ended")


def test_resume_refuses_what_it_cannot_do():
    with pytest.raises(InvalidValue, match="there is no workflow 9"):
        groups.resume(9)
    number = diamond()
    (lease,) = claimed()
    groups.cancel(number)
    with pytest.raises(InvalidValue, match="is being canceled"):
        groups.resume(number)
    transitions.ack(lease)
    Job.objects.filter(pk=job("left").pk).delete()
    with pytest.raises(InvalidValue, match="was deleted"):
        groups.resume(number)
    assert groups.get(number).state == "ended"


def test_names_are_those_of_the_functions_with_numbers_where_they_are_taken():
    wf = workflow("names")
    names = [wf.add(tasks.add, 1, 1).name for _ in range(3)]
    assert names == ["add", "add-2", "add-3"]
    assert wf.add(tasks.add, 1, 1, name=" mine ").name == "mine"


def test_after_and_name_are_not_passed_on():
    wf = workflow("names")
    wf.add(tasks.add, 1, 1, name="first")
    wf.add(tasks.add, 1, 1, after=["first"])
    wf.start()
    assert drain().ok == 2


def test_an_empty_workflow_ends_at_once():
    number = workflow("nothing", **CALLBACKS).start()
    assert groups.get(number).state == "ended"
    assert callbacks() == ["group_succeeded", "group_done"]


def test_start_is_part_of_the_callers_transaction():
    with transaction.atomic():
        diamond()
        transaction.set_rollback(True)
    assert (Job.objects.count(), JobGroup.objects.count(), GroupParent.objects.count()) == (0, 0, 0)


def two_that_wait_for_each_other(wf):
    wf.add(tasks.add, 1, 1, name="a", after=["b"])
    wf.add(tasks.add, 1, 1, name="b", after=["a"])
    wf.start()


def of_another_workflow(wf):
    wf.add(tasks.add, 1, 1, after=[workflow("other").add(tasks.add, 1, 1)])


def added_after_the_start(wf):
    wf.add(tasks.add, 1, 1, name="a")
    wf.start()
    Job.objects.all().delete()
    GroupMember.objects.all().delete()
    JobGroup.objects.all().delete()
    wf.add(tasks.add, 1, 1)


def with_a_held_dedupe_key(wf):
    wf.add(tasks.add.using(dedupe_key="k"), 1, 1)
    wf.add(tasks.add.using(dedupe_key="k"), 1, 1, after=["add"])
    wf.start()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (two_that_wait_for_each_other, InvalidValue, "wait for each other: . -> . -> ."),
        (lambda wf: (wf.add(tasks.add, 1, 1, name="a", after=["a"]), wf.start()), InvalidValue, "a -> a"),
        (lambda wf: (wf.add(tasks.add, 1, 1, after=["no"]), wf.start()), InvalidValue, "has no node 'no'"),
        (of_another_workflow, InvalidValue, "belongs to another workflow"),
        (added_after_the_start, InvalidValue, "comes after the start"),
        (with_a_held_dedupe_key, InvalidValue, "dedupe key"),
        (lambda wf: [wf.add(tasks.add, 1, 1, name="a") for _ in range(2)], InvalidValue, "two nodes 'a'"),
        (lambda wf: wf.add(tasks.add, 1, 1, name=""), InvalidValue, "1 to 255 printable"),
        (lambda wf: wf.add(tasks.add, 1, 1, after="a"), InvalidType, "must be a list"),
        (lambda wf: wf.add(tasks.add, 1, 1, after=wf.add(tasks.add, 1, 1)), InvalidType, "must be a list"),
        (lambda wf: wf.add(tasks.add, 1, 1, after=[7]), InvalidType, "got int"),
        (lambda wf: wf.add(tasks.add, 1), WrongArguments, "add"),
        (lambda wf: wf.add(len, 1), InvalidType, "not a task"),
        (
            lambda wf: wf.add(tasks.add.using(ordering_key="k"), 1, 1, after=[wf.add(tasks.add, 1, 1)]),
            InvalidValue,
            "cannot have an ordering key",
        ),
    ],
)
def test_a_wrong_node_is_refused_and_nothing_is_written(make, error, words):
    with pytest.raises(error, match=words):
        make(workflow("wrong"))
    assert (Job.objects.count(), JobGroup.objects.count(), GroupParent.objects.count()) == (0, 0, 0)


@pytest.mark.parametrize("given", [{"if_failed": "stop"}, {"name": ""}, {"name": "a\nb"}])
def test_a_wrong_workflow_is_refused(given):
    with pytest.raises(InvalidValue):
        workflow(**{"name": "wrong"} | given)


def test_a_callback_that_needs_arguments_is_refused_at_the_start():
    wf = workflow("wrong", on_success=tasks.add)
    with pytest.raises(InvalidValue, match="cannot be a callback"):
        wf.start()
    assert JobGroup.objects.count() == 0


def test_a_full_queue_refuses_the_workflow_by_its_first_nodes_only(settings):
    settings.JOBQUEUE = {"QUEUES": {"default": {"MAX_READY": 2}}}
    diamond()
    wf = workflow("wide")
    for _ in range(3):
        wf.add(tasks.add, 1, 1)
    with pytest.raises(QueueFull):
        wf.start()
    assert Job.objects.count() == 4


def test_a_node_in_another_database_is_refused(monkeypatch):
    backend = tasks.add.get_backend()
    wf = workflow("two databases")
    monkeypatch.setattr(type(backend), "database", "other")
    with pytest.raises(WrongDatabase, match="no transaction spans both"):
        wf.add(tasks.add, 1, 1)


def test_a_waiting_node_is_explained_by_its_parents():
    diamond("hold")
    (found, *_) = explain_job(job("bottom").pk)
    assert found.code == "parents"
    assert "left (" in found.text
    assert "right (" in found.text
    fail("top")
    (found, *_) = explain_job(job("left").pk)
    assert (found.code, found.evidence["held"]) == ("parents", True)
    assert "top (" in found.text


def test_an_expired_node_that_waits_says_that_it_has_expired():
    wf = workflow("two queues")
    top = wf.add(tasks.add, 1, 1, name="top")
    wf.add(tasks.add.using(queue_name="mail"), 1, 1, name="mail", after=[top])
    wf.start()
    Job.objects.filter(pk=job("mail").pk).update(expires_at=UtcNowPlus(-60))
    for found in (explain_job(job("mail").pk), explain_queue("mail")):
        assert [one.code for one in found] == ["expired", "parents", "no_worker"]
        assert "When it is let in" in found[0].next_step


def test_a_queue_is_explained_by_its_first_node_that_waits():
    wf = workflow("two queues")
    top = wf.add(tasks.add, 1, 1, name="top")
    wf.add(tasks.add.using(queue_name="mail"), 1, 1, after=[top])
    wf.start()
    assert [found.code for found in explain_queue("mail")] == ["parents", "no_worker"]


def test_a_sweep_decides_nodes_whose_parents_were_ended_by_plain_sql():
    diamond()
    Job.objects.filter(pk=job("top").pk).update(status=2, finished_at="2026-01-01T00:00:00Z")
    sweeps.GroupSweep().sweep_all(load(), using="default")
    assert len(claimed(5)) == 2


def test_a_sweep_goes_on_where_a_transaction_has_canceled_as_many_as_it_may(monkeypatch):
    monkeypatch.setattr("jobqueue.transitions.dependants.CANCELED_MAX", 1)
    wf = workflow("chain", **CALLBACKS)
    node = wf.add(tasks.add, 1, 1, name="node-0")
    for number in range(1, 6):
        node = wf.add(tasks.add, 1, 1, after=[node], name=f"node-{number}")
    wf.start()
    fail("node-0")
    assert list(states().values()).count("READY") == 4
    for _ in range(5):
        sweeps.GroupSweep().sweep_all(load(), using="default")
    assert list(states().values()).count("CANCELED") == 5
    assert callbacks() == ["group_failed", "group_done"]


def test_pairs_are_deleted_with_the_workflow():
    number = diamond()
    groups.cancel(number)
    transitions.ack_many(claimed(2))
    JobGroup.objects.update(ended_at="2020-01-01T00:00:00Z")
    assert cleaner.GROUPS.run_once(load(), using="default").total() == 1
    assert (GroupParent.objects.count(), GroupMember.objects.count()) == (0, 0)


@finding("S-B1")
def test_nodes_of_two_queues_may_have_the_same_dedupe_key():
    keyed = tasks.add.using(dedupe_key="order-7")
    wf = workflow("order")
    charge = wf.add(keyed.using(queue_name="billing"), 1, 1, name="charge")
    wf.add(keyed.using(queue_name="shipping"), 2, 2, name="ship", after=[charge])
    number = wf.start()
    found = [job(name) for name in ("charge", "ship")]
    assert [(each.queue, each.dedupe_key, each.payload["args"]) for each in found] == [
        ("billing", b"order-7", [1, 1]),
        ("shipping", b"order-7", [2, 2]),
    ]
    transitions.ack(claimed(queue="billing")[0])
    transitions.ack(claimed(queue="shipping")[0])
    assert groups.get(number).done == 2
