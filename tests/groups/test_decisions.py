"""What the decision of a node does besides, and what leaves a node alone."""

from __future__ import annotations

import random

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import flow, group, groups, task, transitions, wakeup, workflow
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import InvalidValue, QueueFull
from jobqueue.grouping.members import add_members
from jobqueue.grouping.nodes import decide
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.producer.enqueueing import new_job
from jobqueue.signals import job_canceled
from jobqueue.transitions import ack, ack_many, claim, dependants, fail
from tests.app import tasks
from tests.groups import nodes
from tests.groups.helpers import callbacks, claimed
from tests.marks import finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def woken(monkeypatch):
    """The queues of which workers are woken."""
    found = []
    monkeypatch.setattr(wakeup, "_callback", lambda queue, using: found.append(queue))
    return found


def mail_after(**options):
    """A node, and one in another queue after it; the id of the workflow, and the lease of the first one."""
    wf = workflow("mail", **options)
    wf.add(tasks.add.using(queue_name="slow"), 1, 1, name="mail", after=[wf.add(tasks.add, 1, 1, name="first")])
    number = wf.start()
    return number, claimed()[0]._replace(max_attempts=1)


def test_the_workers_of_a_node_are_woken_when_it_is_opened(woken, django_capture_on_commit_callbacks):
    _, lease = mail_after()
    with django_capture_on_commit_callbacks(execute=True):
        ack(lease)
    assert woken == ["slow"]


def test_a_resume_wakes_the_workers_of_those_that_run_at_once(woken, django_capture_on_commit_callbacks):
    number, lease = mail_after()
    fail(lease, error="wrong")
    woken.clear()
    with django_capture_on_commit_callbacks(execute=True):
        groups.resume(number)
    assert woken == ["default"]


def test_a_signal_is_sent_for_each_node_that_is_canceled_because_of_others(django_capture_on_commit_callbacks):
    heard = []

    def hear(**values):
        heard.append((values["job_id"], values["queue"], values["task"], values["using"]))

    _, lease = mail_after()
    job_canceled.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            fail(lease, error="wrong")
    finally:
        job_canceled.disconnect(hear)
    assert heard == [(nodes.job("mail").pk, "slow", tasks.add.module_path, "default")]


def test_no_second_signal_is_sent_for_a_child_that_was_canceled_before(django_capture_on_commit_callbacks):
    heard = []

    def hear(**values):
        heard.append(values["job_id"])

    _, lease = mail_after()
    child = nodes.job("mail").pk
    job_canceled.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            transitions.cancel(child)
            fail(lease, error="wrong")
    finally:
        job_canceled.disconnect(hear)
    assert heard == [child]


def test_a_draining_queue_takes_nodes_that_wait_and_refuses_those_that_do_not():
    flow.drain("slow", reason="it goes")
    mail_after()
    wf = workflow("refused")
    wf.add(tasks.add.using(queue_name="slow"), 1, 1)
    with pytest.raises(QueueFull, match="is draining"):
        wf.start()
    assert JobGroup.objects.count() == 1


def test_a_cascade_goes_through_all_levels_in_one_transaction():
    wf, before = workflow("levels", **nodes.CALLBACKS), ["0"]
    wf.add(tasks.add, 1, 1, name="0")
    for level in range(1, 6):
        before = [wf.add(tasks.add, 1, 1, after=before, name=f"{level}-{place}") for place in range(3)]
    number = wf.start()
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    assert (groups.get(number).state, groups.get(number).canceled) == ("ended", 15)
    assert nodes.contradictions() == []
    assert callbacks() == ["group_failed", "group_done"]


def test_parents_that_end_differently_in_one_batch_decide_their_child():
    nodes.diamond()
    ack(claimed()[0])
    left, right = claimed(2)
    transitions.cancel(left.job_id)
    assert ack_many([right]) == []
    fail(left, error="wrong")
    assert nodes.states()["bottom"] == "CANCELED"
    assert nodes.contradictions() == []


def test_two_workflows_whose_nodes_end_in_one_batch_are_both_decided():
    first, second = nodes.diamond(), nodes.diamond("hold")
    ack_many(claimed(2))
    ack_many(claimed(4))
    ack_many(claimed(2))
    assert [nodes.ends(number) for number in (first, second)] == [1, 1]


def test_a_sweep_leaves_a_held_node_alone():
    nodes.diamond("hold")
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    before = [*Job.objects.order_by("pk").values_list("pk", "updated_at", "wait_reason")]
    assert nodes.swept() == (0, 0)
    assert [*Job.objects.order_by("pk").values_list("pk", "updated_at", "wait_reason")] == before


@pytest.mark.parametrize(("if_failed", "then"), [("cancel", "CANCELED"), ("continue", "READY"), ("hold", "READY")])
def test_a_sweep_decides_by_the_policy_when_plain_sql_has_ended_the_parent_badly(if_failed, then):
    nodes.diamond(if_failed)
    Job.objects.filter(pk=nodes.job("top").pk).update(status=Job.Status.FAILED, finished_at="2026-01-01T00:00:00Z")
    nodes.swept()
    found = nodes.states()
    assert (found["left"], found["right"]) == (then, then)
    assert ("left" in nodes.behind_the_gate()) is (if_failed == "hold")
    assert nodes.swept() == (0, 0)
    assert nodes.contradictions() == []


def test_a_sweep_opens_a_node_whose_parents_have_all_ended():
    nodes.diamond()
    ack(claimed()[0])
    Job.objects.filter(pk=nodes.job("left").pk).update(gate=4, wait_reason="parents")
    assert len(claim("default", 5, worker="w")) == 1
    nodes.swept()
    assert nodes.behind_the_gate() == ["bottom"]


def test_a_sweep_that_cancels_the_last_nodes_ends_the_workflow():
    number = nodes.diamond()
    ack(claimed()[0])
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    left, right = nodes.job("left").pk, nodes.job("right").pk
    # As a transaction leaves it that may not cancel more.
    for model, key in ((GroupMember, "pk"), (GroupParent, "parent_id")):
        model.objects.filter(**{f"{key}__in": (left, right)}).update(state=nodes.State.FAILED)
    Job.objects.filter(pk=right).update(status=Job.Status.FAILED)
    nodes.swept()
    assert nodes.states()["bottom"] == "CANCELED"
    assert nodes.ends(number) == 1


def test_a_resume_leaves_jobs_that_a_node_has_added_as_they_are():
    wf = workflow("grows")
    wf.add(tasks.grow, 1, name="grows")
    number = wf.start()
    (lease,) = claimed()
    added_job = new_job("default", {"args": [0], "kwargs": {}})
    (added,) = add_members(number, [added_job], using="default")
    fail(lease._replace(max_attempts=1), error="wrong")
    transitions.cancel(added)
    assert groups.resume(number).runs == ("grows",)
    assert Job.objects.get(pk=added).status == Job.Status.CANCELED


def test_a_group_is_no_workflow_that_could_be_resumed():
    with group("plain") as g:
        g.add(tasks.add, 1, 1)
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    with pytest.raises(InvalidValue, match="there is no workflow"):
        groups.resume(g.id)


def test_a_resumed_workflow_has_no_counts_until_it_ends_again():
    number = nodes.diamond()
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    groups.resume(number)
    row = JobGroup.objects.get(pk=number)
    assert (row.total, row.done, row.failed, row.canceled, row.ended_at) == (None,) * 5
    nodes.run_all()
    assert groups.get(number).done == 4


@pytest.mark.usefixtures("own_registry")
def test_the_time_for_retries_of_a_node_begins_when_its_parents_have_ended():
    limited = task(retry_until_seconds=60)(tasks.group_done.func)
    wf = workflow("retries")
    top = wf.add(limited, name="top")
    wf.add(limited, name="child", after=[top])
    wf.start()
    assert "first_due" in nodes.job("top").options
    assert "first_due" not in nodes.job("child").options


@finding("S-B7")
def test_a_long_chain_is_canceled_in_few_statements():
    wf, before = workflow("chain", on_failure=tasks.group_failed), []
    for number in range(200):
        before = [wf.add(tasks.add, 1, 1, name=f"node-{number}", after=before)]
    number = wf.start()
    (lease,) = claimed()
    with CaptureQueriesContext(connection) as captured:
        fail(lease._replace(max_attempts=1), error="wrong")
    assert (groups.get(number).state, groups.get(number).canceled) == ("ended", 199)
    assert nodes.contradictions() == []
    assert len(captured) < 80


@pytest.mark.parametrize("if_failed", ["cancel", "continue", "hold"])
@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_are_canceled_together_are_those_that_are_canceled_one_generation_after_another(
    if_failed, seed, monkeypatch
):
    draw, size = random.Random(seed), 25
    parents = {place: draw.sample(range(place), min(place, draw.choice([0, 1, 1, 2, 3]))) for place in range(size)}
    fails = {place for place in range(size) if draw.random() < 0.15} | {0}
    ends = []
    for levels in (1, 2, size):
        monkeypatch.setattr(dependants, "LEVELS", levels)
        nodes.empty()
        wf = workflow("random", if_failed=if_failed)
        for place in range(size):
            wf.add(tasks.add, 1, 1, name=str(place), after=[str(parent) for parent in parents[place]])
        wf.start()
        while leases := claimed(1):
            place = int(GroupMember.objects.get(pk=leases[0].job_id).name)
            fail(leases[0]._replace(max_attempts=1), error="x") if place in fails else ack(leases[0])
        assert nodes.contradictions() == []
        ends.append(nodes.states())
    assert ends[0] == ends[1] == ends[2]


def test_an_empty_decision_asks_nothing():
    with CaptureQueriesContext(connection) as captured:
        assert decide(1, [], "default") == []
    assert len(captured) == 0


def test_a_failed_parent_that_is_discarded_counts_as_failed_and_holds_its_children():
    nodes.diamond("hold")
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    top = nodes.job("top").pk
    assert transitions.discard(top)
    assert {*GroupParent.objects.filter(parent_id=top).values_list("state", flat=True)} == {nodes.State.FAILED}
    assert nodes.job("left").wait_reason == "parents failed"


@pytest.mark.parametrize("if_failed", ["cancel", "continue", "hold"])
def test_a_parent_that_ends_cancels_its_children_where_the_cancel_of_all_has_just_begun(if_failed):
    number = nodes.diamond(if_failed)
    (lease,) = claimed()
    # As between the two transactions of groups.cancel(), or where its process died there.
    JobGroup.objects.filter(pk=number).update(canceled_at=UtcNow())
    ack(lease)
    assert nodes.states() == {"top": "DONE", "left": "CANCELED", "right": "CANCELED", "bottom": "CANCELED"}
    assert nodes.ends(number) == 1


def test_a_child_that_runs_already_is_left_alone_when_its_parent_ends_again():
    wf = workflow("twice", if_failed="continue")
    wf.add(tasks.add, 1, 1, name="child", after=[wf.add(tasks.add, 1, 1, name="parent")])
    number = wf.start()
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    (child,) = claimed()
    transitions.retry(nodes.job("parent").pk)
    ack(claimed()[0])
    found = nodes.job("child")
    assert (found.status, found.gate, found.lock_token) == (Job.Status.PROCESSING, 0, child.token)
    ack(child)
    assert nodes.ends(number) == 0  # it has no callbacks


def test_more_pairs_than_one_statement_takes_are_written_in_portions(monkeypatch):
    monkeypatch.setattr("jobqueue.grouping.nodes._PORTION", 2)
    wf = workflow("wide", if_failed="hold")
    top = wf.add(tasks.add, 1, 1)
    for _ in range(5):
        wf.add(tasks.add, 1, 1, after=[top])
    number = wf.start()
    fail(claimed()[0]._replace(max_attempts=1), error="wrong")
    assert nodes.contradictions() == []
    groups.resume(number)
    assert nodes.contradictions() == []
    nodes.run_all()
    assert groups.get(number).done == 6


def test_the_sweep_of_a_plain_group_asks_for_no_nodes(read_once):
    with group("plain") as g:
        g.add_many(tasks.add, [(1, 1), (2, 2)])
    with CaptureQueriesContext(connection) as captured:
        assert nodes.swept() == (0, 0)
    plain = len(captured)
    nodes.empty()
    wf = workflow("two")
    wf.add(tasks.add, 1, 1)
    wf.add(tasks.add, 1, 1)
    wf.start()
    with CaptureQueriesContext(connection) as captured:
        assert nodes.swept() == (0, 0)
    assert len(captured) == plain + 1
