"""groups.resume() where the nodes that did not end well have been touched since the workflow has ended."""

from __future__ import annotations

import pytest
from django.db import connection

from jobqueue import groups, transitions, workflow
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidValue
from jobqueue.maintenance import cleaner
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.transitions import ack, claim, fail, retry
from tests.app import tasks
from tests.groups import nodes
from tests.groups.helpers import callbacks, claimed
from tests.marks import finding

pytestmark = pytest.mark.django_db


def chain(*names, **options):
    """Nodes that run one after the other; the id of their workflow."""
    wf, before = workflow("chain", **nodes.CALLBACKS), []
    for name in names:
        before = [wf.add(tasks.add.using(**options), 1, 1, name=name, after=before)]
    return wf.start()


def fail_next():
    """Let the next job fail for good."""
    (lease,) = claimed()
    fail(lease._replace(max_attempts=1), error="wrong")


def test_a_node_that_was_retried_since_the_end_and_is_done_does_not_run_again():
    number = chain("first", "second", "third")
    fail_next()
    assert retry(nodes.job("first").pk)
    nodes.run_all()
    told = groups.resume(number)
    assert (told.runs, told.waits) == (("second",), ("third",))
    assert nodes.states() == {"first": "DONE", "second": "READY", "third": "READY"}
    assert nodes.contradictions() == []
    nodes.run_all()
    assert nodes.ends(number) == 2
    assert callbacks() == ["group_failed", "group_done", "group_succeeded", "group_done"]


@pytest.mark.parametrize("runs", [False, True])
def test_a_node_that_was_retried_since_the_end_and_has_not_ended_is_waited_for(runs):
    number = chain("first", "second", "third")
    fail_next()
    assert retry(nodes.job("first").pk)
    leases = claimed(5) if runs else []
    told = groups.resume(number, dry_run=True)
    assert (told.runs, told.waits) == (("first",), ("second", "third"))
    assert groups.resume(number) == groups.Resumed(number, ("first",), ("second", "third"), False)
    assert nodes.contradictions() == []
    assert nodes.behind_the_gate() == ["second", "third"]
    for lease in leases:
        ack(lease)
    nodes.run_all()
    assert (nodes.ends(number), callbacks()[2:]) == (2, ["group_succeeded", "group_done"])


def test_a_workflow_of_which_only_that_node_did_not_end_well_ends_again_with_it():
    number = chain("first")
    fail_next()
    assert retry(nodes.job("first").pk)
    assert groups.resume(number) == groups.Resumed(number, ("first",), (), False)
    assert groups.get(number).state == "sealed"
    nodes.run_all()
    assert callbacks()[2:] == ["group_succeeded", "group_done"]


def test_a_held_dedupe_key_is_named_as_the_cause_and_nothing_is_written():
    number = chain("first", dedupe_key="k")
    fail_next()
    Job.objects.update(finished_at="2020-01-01T00:00:00Z")
    holder = tasks.add.using(dedupe_key="k").enqueue(1, 1)
    before = [*Job.objects.order_by("pk").values_list("status", "gate", "epoch")]
    with pytest.raises(InvalidValue, match="its dedupe key is held by another job"):
        groups.resume(number)
    assert [*Job.objects.order_by("pk").values_list("status", "gate", "epoch")] == before
    assert groups.get(number).state == "ended"
    transitions.cancel(holder.id)
    Job.objects.filter(pk=holder.id).update(dedupe_key=None)
    assert groups.resume(number).runs == ("first",)


def test_resume_of_a_live_workflow_leaves_what_runs_alone():
    number = nodes.diamond()
    ack(claimed()[0])
    left, right = claim("default", 2, worker="w")
    fail(left._replace(max_attempts=1), error="wrong")
    transitions.cancel(nodes.job("bottom").pk)
    told = groups.resume(number)
    assert (told.runs, told.waits) == (("left",), ("bottom",))
    nodes.run_all()
    assert nodes.behind_the_gate() == ["bottom"]
    ack(right)
    nodes.run_all()
    assert nodes.ends(number) == 1
    assert set(nodes.states().values()) == {"DONE"}


def test_a_resumed_workflow_can_be_canceled_and_resumed_again():
    number = nodes.diamond()
    groups.cancel(number)
    assert groups.resume(number).runs == ("top",)
    assert groups.get(number).canceled_at is None
    assert groups.cancel(number)
    assert GroupMember.objects.filter(state=nodes.State.CANCELED).count() == 4
    assert groups.resume(number).runs == ("top",)
    nodes.run_all()
    assert (nodes.ends(number), nodes.states()["bottom"]) == (3, "DONE")


def test_a_failed_child_waits_for_its_parent_that_was_retried_and_runs():
    wf = workflow("twice", if_failed="continue", **nodes.CALLBACKS)
    wf.add(tasks.add, 1, 1, name="child", after=[wf.add(tasks.add, 1, 1, name="parent")])
    wf.add(tasks.add, 1, 1, name="last", after=["child", "parent"])
    number = wf.start()
    fail_next()
    (child,) = claimed()
    assert retry(nodes.job("parent").pk)
    (parent,) = claimed()
    fail(child._replace(max_attempts=1), error="wrong")
    told = groups.resume(number)
    assert (told.runs, told.waits) == ((), ("child",))
    assert nodes.behind_the_gate() == ["child", "last"]
    ack(parent)
    nodes.run_all()
    assert (nodes.ends(number), nodes.contradictions()) == (1, [])


@finding("S-B2")
def test_a_node_whose_done_parent_was_deleted_does_not_run_again():
    number = chain("first", "second", "third")
    ack(claimed()[0], result=1)
    fail_next()
    gone = nodes.job("first").pk
    nodes.job("first").delete()
    for dry_run in (True, False):
        with pytest.raises(InvalidValue, match=f"job {gone} of the workflow {number} was deleted"):
            groups.resume(number, dry_run=dry_run)
    assert nodes.states() == {"second": "FAILED", "third": "CANCELED"}


def test_a_deleted_parent_that_no_node_waits_for_again_does_not_matter():
    number = chain("first", "second", "third")
    transitions.ack_many(claimed(1))
    transitions.ack_many(claimed(1))
    fail_next()
    nodes.job("first").delete()
    assert groups.resume(number).runs == ("third",)


def old_workflow():
    """A workflow that ended long ago, and whose callbacks have ended."""
    number = chain("first", "second")
    fail_next()
    transitions.ack_many(claimed(2))
    JobGroup.objects.update(ended_at=UtcNowPlus(-31 * 86400))
    return number


@finding("S-C5")
def test_a_workflow_that_is_resumed_while_old_ones_are_deleted_stays_whole():
    number, resumed = old_workflow(), []

    def then_resume(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if not resumed and sql.startswith("SELECT") and "job_group" in sql:
            resumed.append(number)
            groups.resume(number)
        return found

    # After the look for those that are old enough.
    with connection.execute_wrapper(then_resume):
        assert cleaner.GROUPS.run_once(load(), using="default").total() == 0
    assert resumed
    nodes.run_all()
    assert nodes.ends(number) == 2


def test_a_workflow_whose_deletion_has_begun_is_not_resumed():
    number = old_workflow()
    # As where a pass has stopped in the midst of a workflow.
    assert cleaner.GROUPS.run_once(load(), using="default", limit=1, seconds=0).total() == 0
    with pytest.raises(InvalidValue, match="is being deleted"):
        groups.resume(number)
    assert cleaner.GROUPS.run_once(load(), using="default").total() == 1
    assert not GroupMember.objects.exists()
