"""current_job().group.add() in a workflow: a running node adds nodes, and who waits for it waits for them, too."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import group, groups, transitions, workflow
from jobqueue.context.job_context import JobContext
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError, LeaseLost, QueueFull
from jobqueue.models import GroupMember, GroupParent, Job
from jobqueue.testing import drain
from jobqueue.transitions import ack, ack_many, fail
from tests.app import tasks
from tests.groups import nodes
from tests.groups.helpers import callbacks, claimed

pytestmark = pytest.mark.django_db


def started(parents, if_failed="cancel"):
    """A workflow of nodes with these names, each after those of its list; its id. Those without parents come first."""
    wf = workflow("grows", if_failed=if_failed, **nodes.CALLBACKS)
    for name, after in parents.items():
        wf.add(tasks.add, 1, 2, name=name, after=after)
    return wf.start()


def run(name="top", **changes):
    """The running job of this node, as it sees itself; it has no other attempt."""
    Job.objects.filter(pk=nodes.job(name).pk).update(priority=9)
    (lease,) = claimed()
    assert lease.job_id == nodes.job(name).pk
    return JobContext(lease._replace(max_attempts=1, **changes))


def waits(name):
    return name in nodes.behind_the_gate()


PAIR = {"top": (), "child": ("top",)}


def test_who_waits_for_the_adding_node_waits_for_what_it_added():
    number = started(PAIR)
    top = run()
    added = top.group.add(tasks.add, 3, 4, name="more")
    ack(top.lease)
    assert waits("child")
    (lease,) = claimed(5)
    assert lease.job_id == added
    ack(lease, result=7)
    assert not waits("child")
    nodes.run_all()
    assert callbacks() == ["group_succeeded", "group_done"]
    assert (groups.get(number).total, groups.get(number).done) == (3, 3)


def test_a_node_that_was_added_runs_while_the_adding_one_does():
    number = started(PAIR)
    top = run()
    top.group.add(tasks.add, 3, 4, name="more")
    ack(claimed()[0])
    assert waits("child")
    ack(top.lease)
    assert not waits("child")
    nodes.run_all()
    assert (nodes.ends(number), nodes.swept()) == (1, (0, 0))


def test_a_node_that_was_added_adds_others():
    number = started(PAIR)
    top = run()
    top.group.add(tasks.add, 3, 4, name="more")
    ack(top.lease)
    more = run("more")
    more.group.add(tasks.add, 5, 6, name="most")
    ack(more.lease)
    assert waits("child")
    ack(run("most").lease)
    assert not waits("child")
    nodes.run_all()
    assert nodes.ends(number) == 1


def test_the_children_find_the_results_of_added_nodes_by_their_names():
    wf = workflow("tree", on_success=tasks.group_succeeded)
    wf.add(tasks.tell_parents, name="sum", after=[wf.add(tasks.fan_out, 3)])
    number = wf.start()
    drain()
    assert nodes.job("sum").result == {"fan_out": 3, "add": 0, "add-2": 2, "add-3": 4}
    assert groups.get(number).results()["add-3"] == 4
    assert callbacks() == ["group_succeeded"]


@pytest.mark.parametrize(("if_failed", "then"), [("cancel", "CANCELED"), ("continue", "DONE")])
def test_the_failure_of_an_added_node_decides_the_children_of_the_adding_one(if_failed, then):
    number = started(PAIR, if_failed)
    top = run()
    top.group.add(tasks.add, 3, 4, name="more")
    ack(top.lease)
    fail(run("more").lease, error="wrong")
    nodes.run_all()
    assert (nodes.states()["child"], groups.get(number).state) == (then, "ended")
    assert callbacks() == ["group_failed", "group_done"]


def test_an_added_node_runs_after_nodes_of_the_workflow():
    number = started({"top": (), "beside": (), "child": ("top",)})
    top, beside = run(), run("beside")
    more = top.group.add(tasks.add, 3, 4, name="more", after=["top", "beside"])
    top.group.add(tasks.add, 5, 6, name="most", after=[more])
    ack(top.lease)
    assert nodes.behind_the_gate() == ["child", "more", "most"]
    # Its lease says that nobody waits for it.
    ack(beside.lease)
    assert nodes.behind_the_gate() == ["child", "most"]
    nodes.run_all()
    assert nodes.contradictions() == []
    assert (nodes.ends(number), nodes.swept()) == (1, (0, 0))


@pytest.mark.parametrize("verb", ["ack_many", "fail", "cancel", "reap"])
def test_whatever_ends_a_parent_that_did_not_know_of_its_child_decides_it(verb):
    number = started({"top": (), "beside": ()}, "continue")
    beside, top = run("beside"), run()
    top.group.add(tasks.add, 3, 4, name="more", after=["beside"])
    Job.objects.filter(pk=beside.job_id).update(max_attempts=1)
    if verb == "ack_many":
        assert ack_many([top.lease, beside.lease]) == []
    elif verb == "fail":
        fail(beside.lease, error="wrong")
    elif verb == "cancel":
        transitions.release(beside.lease)
        assert transitions.cancel(beside.job_id)
    else:
        Job.objects.filter(pk=beside.job_id).update(lock_until="2020-01-01T00:00:00Z")
        assert transitions.reap().dead == 1
    assert nodes.contradictions() == []
    assert not waits("more")
    if verb != "ack_many":
        ack(top.lease)
    nodes.run_all()
    assert (nodes.ends(number), nodes.swept()) == (1, (0, 0))


def test_a_group_that_ends_in_one_batch_with_a_node_that_has_a_late_child_ends():
    started({"top": (), "beside": ()})
    with group("plain") as g:
        g.add(tasks.add, 1, 2)
    # One claim: leases of one token are settled in one transaction.
    top, beside, plain = claimed(3)
    JobContext(top).group.add(tasks.add, 3, 4, name="more", after=["beside"])
    assert ack_many([beside, plain]) == []
    assert groups.get(g.id).state == "ended"
    assert not waits("more")
    ack(top)
    nodes.run_all()
    assert nodes.swept() == (0, 0)


def test_the_cancel_of_a_parent_that_has_not_begun_cancels_the_added_node():
    number = started({"top": (), "beside": ()})
    top = run()
    top.group.add(tasks.add, 3, 4, name="more", after=["beside"])
    assert transitions.cancel(nodes.job("beside").pk)
    assert nodes.states()["more"] == "CANCELED"
    ack(top.lease)
    assert (nodes.ends(number), nodes.swept()) == (1, (0, 0))


def test_a_cascade_goes_through_added_nodes():
    number = started({"top": (), "beside": (), "leaf": ("beside",)})
    top = run()
    top.group.add(tasks.add, 3, 4, name="more", after=["leaf"])
    fail(run("beside").lease, error="wrong")
    assert nodes.states()["more"] == "CANCELED"
    ack(top.lease)
    assert (nodes.ends(number), nodes.contradictions(), nodes.swept()) == (1, [], (0, 0))


@pytest.mark.parametrize(
    ("if_failed", "how", "then", "gated"),
    [
        ("cancel", "done", "READY", False),
        ("cancel", "failed", "CANCELED", False),
        ("continue", "failed", "READY", False),
        ("hold", "failed", "READY", True),
    ],
)
def test_an_added_node_whose_parents_have_ended_is_decided_at_once(if_failed, how, then, gated):
    number = started({"top": (), "beside": (), "child": ("top",)}, if_failed)
    beside, top = run("beside"), run()
    if how == "done":
        ack(beside.lease)
    else:
        fail(beside.lease, error="wrong")
    top.group.add(tasks.add, 3, 4, name="more", after=["beside"])
    assert (nodes.states()["more"], waits("more")) == (then, gated)
    assert nodes.contradictions() == []
    ack(top.lease)
    nodes.run_all()
    if not gated:
        assert (nodes.ends(number), nodes.swept()) == (1, (0, 0))


def test_a_parent_that_is_retried_by_hand_keeps_its_late_child_waiting():
    number = started({"top": (), "beside": ()}, "hold")
    beside, top = run("beside"), run()
    top.group.add(tasks.add, 3, 4, name="more", after=["beside"])
    fail(beside.lease, error="wrong")
    assert nodes.job("more").wait_reason == "parents failed"
    assert transitions.retry(beside.job_id)
    assert nodes.job("more").wait_reason == "parents"
    ack(top.lease)
    nodes.run_all()
    assert (nodes.states()["more"], nodes.ends(number), nodes.swept()) == ("DONE", 1, (0, 0))


@pytest.mark.parametrize("how", ["retry", "resume"])
def test_an_added_node_waits_for_a_parent_that_had_failed_and_runs_again(how):
    number = started({"top": (), "beside": ()}, "hold")
    beside, top = run("beside"), run()
    fail(beside.lease, error="wrong")
    top.group.add(tasks.add, 3, 4, name="more", after=["beside"])
    ack(top.lease)
    assert transitions.retry(beside.job_id) if how == "retry" else groups.resume(number).runs == ("beside",)
    assert nodes.job("more").wait_reason == "parents"
    nodes.run_all()
    assert (nodes.states()["more"], nodes.ends(number), nodes.swept()) == ("DONE", 1, (0, 0))


def test_a_resume_runs_added_nodes_again_and_the_callbacks_follow_once_more():
    number = started(PAIR)
    top = run()
    top.group.add(tasks.add, 3, 4, name="more")
    ack(top.lease)
    fail(run("more").lease, error="wrong")
    assert nodes.ends(number) == 1
    told = groups.resume(number)
    assert (told.runs, told.waits) == (("more",), ("child",))
    nodes.run_all()
    assert set(nodes.states().values()) == {"DONE"}
    assert (nodes.ends(number), groups.get(number).done, nodes.swept()) == (2, 3, (0, 0))


def test_a_canceled_workflow_cancels_what_was_added_and_takes_no_more():
    number = started(PAIR)
    top = run()
    top.group.add(tasks.add, 3, 4, name="more")
    groups.cancel(number)
    assert nodes.states()["more"] == "CANCELED"
    with pytest.raises(InvalidValue, match="was canceled, and takes no more jobs"):
        top.group.add(tasks.add, 3, 4)
    ack(top.lease)
    assert (nodes.ends(number), nodes.swept()) == (1, (0, 0))


def again(context):
    """The next run of a job whose run has failed."""
    fail(context.lease._replace(max_attempts=5), error="wrong", delay_seconds=0)
    (lease,) = claimed()
    assert (lease.job_id, lease.attempt) == (context.job_id, context.attempt + 1)
    return JobContext(lease)


def test_a_run_that_comes_after_others_gets_the_nodes_that_they_added():
    started(PAIR)
    top = run()
    first = [top.group.add(tasks.add, 3, 4) for _ in range(2)]
    first += [top.group.add(tasks.add, 5, 6), top.group.add(tasks.add, 7, 8, name="own")]
    top = again(top)
    assert [top.group.add(tasks.add, 3, 4), top.group.add(tasks.add, 3, 4), top.group.add(tasks.add, 5, 6)] == first[:3]
    assert top.group.add(tasks.add, 9, 9, name="own") == first[3]
    more = top.group.add(tasks.add, 3, 4)
    assert more not in first
    assert GroupMember.objects.get(pk=more).name == "add-4"


def test_another_run_does_not_get_nodes_of_others():
    started({"top": (), "add": ()})
    top = again(run())
    assert top.group.add(tasks.add, 1, 2) != nodes.job("add").pk
    with pytest.raises(InvalidValue, match="there is a node 'add' in the workflow"):
        top.group.add(tasks.add, 1, 2, name="add")


def test_what_a_job_has_added_does_not_wait_for_what_it_adds_later():
    started(PAIR)
    top = run()
    first = top.group.add(tasks.add, 3, 4, name="first", after=["top"])
    top.group.add(tasks.add, 5, 6, name="second", after=[first])
    ack(top.lease)
    assert nodes.behind_the_gate() == ["child", "second"]


def test_an_add_is_part_of_the_callers_transaction():
    started(PAIR)
    top = run()
    before = Job.objects.count(), GroupMember.objects.count(), GroupParent.objects.count()
    with transaction.atomic():
        top.group.add(tasks.add, 3, 4, after=["top"])
        transaction.set_rollback(True)
    assert (Job.objects.count(), GroupMember.objects.count(), GroupParent.objects.count()) == before
    with top.finish():
        top.group.add(tasks.add, 3, 4, name="more")
    assert waits("child")
    nodes.run_all()
    assert nodes.states() == {"top": "DONE", "child": "DONE", "more": "DONE"}


def test_who_lost_its_lease_adds_nothing():
    started(PAIR)
    top = run()
    transitions.release(top.lease)
    with pytest.raises(LeaseLost):
        top.group.add(tasks.add, 3, 4)
    assert len(nodes.states()) == 2


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"name": "child"}, InvalidValue, "there is a node 'child'"),
        ({"name": "top"}, InvalidValue, "there is a node 'top'"),
        ({"name": ""}, InvalidValue, "1 to 255 printable"),
        ({"name": 7}, InvalidType, "name must be a str"),
        ({"after": "top"}, InvalidType, "write after="),
        ({"after": 7}, InvalidType, "after must be a list"),
        ({"after": [True]}, InvalidType, "got bool"),
        ({"after": ["no"]}, InvalidValue, "has no node 'no'"),
        ({"after": [2**40]}, InvalidValue, "has no node 1099511627776"),
        ({"after": [-1]}, InvalidValue, "has no node -1"),
        ({"after": [2**70]}, InvalidValue, "has no node 1180591620717411303424"),
        ({"after": ["child"]}, InvalidValue, "'child', which waits for the node that adds it"),
        ({"after": ["top", "leaf"]}, InvalidValue, "'leaf', which waits for the node that adds it"),
    ],
)
def test_a_wrong_node_is_refused_and_the_callers_transaction_goes_on(given, error, words):
    started({**PAIR, "leaf": ("child",)})
    top = run()
    before = [*GroupMember.objects.order_by("pk").values()], [*GroupParent.objects.order_by("pk").values()]
    with transaction.atomic(), pytest.raises(error, match=words):
        top.group.add(tasks.add, 3, 4, **given)
    assert ([*GroupMember.objects.order_by("pk").values()], [*GroupParent.objects.order_by("pk").values()]) == before
    assert Job.objects.count() == 3
    top.group.add(tasks.add, 3, 4)


def test_a_node_of_another_workflow_is_an_unknown_parent():
    started({"outside": ()})
    other = nodes.job("outside").pk
    started(PAIR)
    top = run()
    for one in (other, "outside"):
        with pytest.raises(InvalidValue, match="unknown parent"):
            top.group.add(tasks.add, 3, 4, after=[one])


def test_keys_and_full_queues_refuse_an_added_node(settings):
    started(PAIR)
    top = run()
    top.group.add(tasks.add.using(dedupe_key="k"), 3, 4)
    with pytest.raises(InvalidValue, match="dedupe key"):
        top.group.add(tasks.add.using(dedupe_key="k"), 3, 4)
    with pytest.raises(InvalidValue, match="cannot have an ordering key"):
        top.group.add(tasks.add.using(ordering_key="k"), 3, 4, after=["top"])
    settings.JOBQUEUE = {"QUEUES": {"default": {"MAX_READY": 1}}}
    with pytest.raises(QueueFull):
        top.group.add(tasks.add, 3, 4)
    assert len(nodes.states()) == 3


def test_a_plain_group_has_no_nodes():
    with group("plain") as g:
        g.add(tasks.add, 1, 2)
    running = JobContext(claimed()[0])
    for given in ({"name": "n"}, {"after": ["n"]}):
        with pytest.raises(InvalidValue, match="are for nodes of a workflow"):
            running.group.add(tasks.add, 3, 4, **given)
    assert running.group.add(tasks.add, 3, 4)
    assert groups.get(g.id).total == 2


def test_a_callback_of_a_workflow_adds_nothing():
    number = started({"top": ()})
    nodes.run_all()
    callback = Job.objects.get(task="tests.app.tasks.group_done")
    Job.objects.filter(pk=callback.pk).update(status=Job.Status.READY, finished_at=None)
    context = JobContext(claimed()[0])
    with pytest.raises(JobQueueError, match="has ended, and takes no more jobs"):
        context.group.add(tasks.add, 1, 2)
    assert groups.get(number).total == 1


def test_the_end_of_a_node_asks_no_more_when_nothing_was_added():
    started({"top": (), "child": ("top",), "beside": ()})
    top, beside = run(), run("beside")
    with CaptureQueriesContext(connection) as captured:
        ack(beside.lease)
    members = [query["sql"] for query in captured if "job_group_member" in query["sql"]]
    assert len(members) == 2
    assert not [query for query in captured if "job_group_parent" in query["sql"]]
    ack(top.lease)
