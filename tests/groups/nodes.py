"""Workflows of tests, and what must be true of any workflow at any time."""

from __future__ import annotations

from jobqueue import groups, workflow
from jobqueue.conf import load
from jobqueue.maintenance import sweeps
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.models.group import PARENTS_GATE
from jobqueue.transitions import ack_many
from tests.app import tasks
from tests.groups.helpers import claimed

CALLBACKS = {"on_success": tasks.group_succeeded, "on_failure": tasks.group_failed, "on_done": tasks.group_done}
State = GroupMember.State
_STATES_OF = {
    Job.Status.READY: State.OUTSTANDING,
    Job.Status.PROCESSING: State.OUTSTANDING,
    Job.Status.DONE: State.DONE,
    Job.Status.FAILED: State.FAILED,
    Job.Status.CANCELED: State.CANCELED,
}


def diamond(if_failed="cancel", **given):
    """top -> left, right -> bottom; its id."""
    wf = workflow("publish", if_failed=if_failed, **CALLBACKS, **given)
    top = wf.add(tasks.add, 1, 1, name="top")
    sides = [wf.add(tasks.add, 1, 2, after=[top], name=name) for name in ("left", "right")]
    wf.add(tasks.tell_parents, after=sides, name="bottom")
    return wf.start()


def job(name):
    """The job of the node with this name."""
    return Job.objects.get(pk=GroupMember.objects.get(name=name).pk)


def states():
    """The names of the nodes and what the states of their jobs are."""
    found = dict(GroupMember.objects.order_by("pk").values_list("pk", "name"))
    return {
        found[pk]: Job.Status(status).name
        for pk, status in Job.objects.filter(pk__in=found).values_list("pk", "status")
    }


def empty():
    """No job and no workflow is left of an earlier round."""
    for model in (Job, JobGroup, GroupMember, GroupParent):
        model.objects.all().delete()


def contradictions():
    """Nodes of which the job, the member and the pairs do not say the same."""
    jobs = dict(Job.objects.values_list("pk", "status"))
    members = dict(GroupMember.objects.values_list("pk", "state"))
    wrong = [f"member {pk} is {state}, its job {jobs[pk]}" for pk, state in members.items() if _wrong(state, jobs[pk])]
    for pk, parent, state in GroupParent.objects.values_list("pk", "parent_id", "state"):
        if state != members[parent]:
            wrong.append(f"pair {pk} says {state}, its parent {parent} is {members[parent]}")
    return wrong


def _wrong(state, status):
    return state != _STATES_OF[Job.Status(status)]


def behind_the_gate():
    """The names of the nodes that wait for their parents, or are held by them."""
    ids = Job.objects.filter(status=Job.Status.READY, gate=PARENTS_GATE).values("pk")
    return [*GroupMember.objects.filter(pk__in=ids).order_by("pk").values_list("name", flat=True)]


def run_all():
    """Run what is due until nothing is, as workers would; without a sweep."""
    while leases := claimed(50):
        ack_many(leases)


def swept():
    """What a sweep has had to do: nothing, if our own verbs have done all."""
    done = sweeps.GroupSweep().sweep_all(load(), using="default")
    return done["groups_members_ended"], done["groups_ended"]


def ends(number):
    """How often a workflow has ended, by its callbacks; it must have ended now."""
    assert groups.get(number).state == "ended"
    return Job.objects.filter(task="tests.app.tasks.group_done", options__callback_of=number).count()
