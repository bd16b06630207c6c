"""A bulk action whose process dies, or loses its session, at any moment: each job is changed once, and counted once."""

from __future__ import annotations

import pytest

from jobqueue import bulk_verbs, enqueue, group, groups
from jobqueue.bulk_verbs import Who
from jobqueue.conf import load
from jobqueue.exceptions import OutcomeUnknown
from jobqueue.maintenance import sweeps
from jobqueue.models import AuditEvent, GroupMember, Job, JobAttempt, JobGroup, LaneEntry
from jobqueue.runs.bulk_steps import step
from jobqueue.transitions import ack, claim, discard, fail, resume
from tests.app import tasks
from tests.faults.cuts import before_first, carry_out_all, disconnected, each_cut, killed
from tests.marks import committed
from tests.settings import FULL

#: `make prove` walks each moment
STRIDE = 1 if FULL else 41
KEYS = (None, "k", None, "k")

pytestmark = committed


def waiting(keys=KEYS):
    return [enqueue("default", n, ordering_key=key, max_attempts=1) for n, key in enumerate(keys)]


def dead(keys=KEYS):
    """Dead letters, of these ordering keys."""
    ids = waiting(keys)
    for _ in range(2):
        for lease in claim("default", 9, worker="w"):
            fail(lease, error=ValueError("x"))
        resume("default", "k")
    return ids


def running():
    """Four running jobs."""
    ids = [enqueue("default", n, max_attempts=1) for n in range(4)]
    assert len(claim("default", 9, worker="w")) == 4
    return ids


def members():
    """Four jobs of a group that wait."""
    with group("walk", on_success=tasks.group_succeeded, on_failure=tasks.group_failed) as g:
        g.add_many(tasks.add, [(1, 2)] * 4)
    return [*Job.objects.order_by("pk").values_list("pk", flat=True)]


def mixed():
    """Two dead letters and two jobs that wait, three of one ordering key; another job is discarded already."""
    first = enqueue("default", 0, max_attempts=1)
    (lease,) = claim("default", worker="w")
    fail(lease, error=ValueError("x"))
    assert discard(first)
    return [*dead(KEYS[:2]), *(enqueue("default", n, ordering_key="k") for n in range(2))]


def retried(ids, where):
    """READY with one fresh allowance, and the jobs of a key in their order."""
    rows = Job.objects.filter(pk__in=ids).values_list("status", "epoch", "attempts", "max_attempts")
    assert [*rows] == [(Job.Status.READY, 1, 1, 2)] * 4, where
    order = claimed()
    assert sorted(order) == ids, where
    assert [job_id for job_id in order if job_id in ids[1::2]] == ids[1::2], where


def ended(ids, where):
    rows = Job.objects.filter(pk__in=ids).values_list("status", "epoch")
    assert [*rows] == [(Job.Status.CANCELED, 0)] * 4, where
    # Its ordering key is free.
    later = enqueue("default", 9, ordering_key="k")
    assert claimed() == [later], where


def group_ended(ids, where):
    assert {*Job.objects.filter(pk__in=ids).values_list("status", flat=True)} == {Job.Status.CANCELED}, where
    found = groups.get(JobGroup.objects.get().pk)
    assert (found.state, found.canceled, found.total) == ("ended", 4, 4), where
    assert Job.objects.exclude(pk__in=ids).values_list("task", flat=True).get() == tasks.group_failed.module_path, where


def released(ids, where):
    rows = Job.objects.filter(pk__in=ids).values_list("status", "attempts", "fence")
    assert [*rows] == [(Job.Status.READY, 0, 1)] * 4, where
    assert sorted(claimed()) == ids, where


def deleted(ids, where):
    """With their attempts."""
    assert not Job.objects.exists(), where
    assert not JobAttempt.objects.exists(), where


def claimed():
    """The ids of all jobs that run now, in the order in which they do."""
    order = []
    while leases := claim("default", 9, worker="w"):
        order += [lease.job_id for lease in leases]
        for lease in leases:
            ack(lease)
    return order


#: by verb, and by what else the jobs are, what makes four jobs that it changes, and what checks them afterwards
VERBS = {
    "retry": (dead, retried),
    "cancel": (waiting, ended),
    "cancel members": (members, group_ended),
    "discard": (mixed, ended),
    "release": (running, released),
    "prune": (lambda: dead([None] * 4), deleted),
}


def begin(verb):
    for model in (Job, JobAttempt, LaneEntry, JobGroup, GroupMember, AuditEvent):
        model.objects.all().delete()
    ids = VERBS[verb][0]()
    record(verb)
    return ids


def record(verb):
    return bulk_verbs.record(verb.split()[0], {"queue": "default"}, who=Who(program="a test"))


def carry_out(most=2):
    """Do chunks until no bulk action is under way."""
    carry_out_all(lambda: step(using="default", most=most), AuditEvent.objects.filter(ended_at__isnull=True))


@each_cut
@pytest.mark.parametrize("verb", VERBS)
def test_wherever_it_is_cut_each_job_is_changed_and_counted_exactly_once(verb, cut, figure):
    """A bulk action cut before and after each statement: no job is left out, none is changed or counted twice."""
    number, cuts = before_first(STRIDE), 0
    while True:
        number += STRIDE
        ids = begin(verb)
        stopped = cut(number, carry_out)
        where = f"cut at moment {number}"
        # The stored progress counts the jobs that were changed.
        event = AuditEvent.objects.get()
        assert event.refused == 0, where
        assert (event.after_id == 0) == (event.changed == 0), where
        carry_out()
        if stopped:
            # What a worker does every second, for a key or a group whose process died after the commit.
            sweeps.OrderingSweep().sweep_all(load(), using="default")
            sweeps.GroupSweep().sweep_all(load(), using="default")
        event = AuditEvent.objects.get()
        assert (event.phase, event.changed, event.refused, event.due_at) == ("done", 4, 0, None), where
        VERBS[verb][1](ids, where)
        if not stopped:
            break
        cuts += 1
    assert number > 20
    figure("cut by", {killed: "SIGKILL", disconnected: "a lost session"}[cut])
    figure("verb", verb)
    figure("moments", cuts)
    figure("jobs left out / changed or counted twice", "0 / 0")


@each_cut
def test_wherever_the_record_is_cut_the_action_is_recorded_once_or_not_at_all(cut):
    """An id that record() returns is that of a row. An error other than OutcomeUnknown says that there is none."""
    number, stopped = 0, True
    while stopped:
        number += 1
        begin("retry")
        AuditEvent.objects.all().delete()
        told = []

        def work(told=told):
            try:
                told.append(record("retry"))
            except OutcomeUnknown:
                told.append(None)

        stopped = cut(number, work)
        found = AuditEvent.objects.count()
        # A process that was killed has told nobody.
        assert found == 1 or (found == 0 and stopped and (cut is killed or told in ([], [None]))), f"{number}: {told}"
        assert not (found and cut is disconnected and not told), f"cut at moment {number}: told that it failed"
    assert number > 5
