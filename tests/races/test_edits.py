"""An edit against what else may happen to a job that waits: at each moment of the one, the other."""

import pytest
from django.db import transaction

from jobqueue import enqueue, task
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Job, JobTag, LaneEntry
from jobqueue.transitions import ack, cancel, claim, edit
from tests.factories import claim_one, job
from tests.marks import committed
from tests.races.actors import Actor, holding
from tests.races.stepping import walk
from tests.settings import VENDOR

pytestmark = committed


def user_of(user, n):
    return f"user-{user}"


def by_number(user, n):
    return f"number-{n}"


@task(queue_name="q", unique="waiting", dedupe_key=by_number, on_conflict="replace", ordering_key=user_of)
def report(user, n):
    return user


def add(user="ann", n=1):
    """The id of a job, behind which nothing waits; its task is registered before a race."""
    Job.objects.all().delete()
    LaneEntry.objects.all().delete()
    return int(report.enqueue(user, n).id)


def drained():
    """The arguments of all jobs in the order in which they run; each is claimed once."""
    found, ids = [], []
    for queue in ("q", "slow"):
        while leases := claim(queue, limit=1, worker="w"):
            found.append(tuple(leases[0].payload["args"]))
            ids.append(leases[0].job_id)
            ack(leases[0])
    assert len(ids) == len({*ids})
    return found


def check_lanes():
    """Each READY job with an ordering key stands once in a lane, and its key is that of its arguments."""
    for one in Job.objects.filter(status=Job.Status.READY, ordering_key__isnull=False):
        assert LaneEntry.objects.filter(job_id=one.pk).count() == 1
        assert bytes(one.ordering_key).decode() == user_of(*one.payload["args"])


def changes(job_id):
    return edit(job_id, args=["ben", 2], priority=3, tags=["a"])


@pytest.mark.parametrize("edit_first", [True, False], ids=["edit first", "claim first"])
def test_a_claim_gets_the_job_as_it_was_or_as_it_is_and_only_then_it_was_changed(edit_first):
    def take(job_id):
        return claim("q", worker="w")

    def check(job_id, outcomes):
        changed, leases = outcomes if edit_first else outcomes[::-1]
        if leases and not changed:
            assert leases[0].payload["args"] == ["ann", 1]
            assert (job(job_id).priority, JobTag.objects.count()) == (0, 0)
        else:
            assert changed is True
            (lease,) = leases or claim("q", worker="w")
            assert lease.payload["args"] == ["ben", 2]
            assert job(job_id).priority == 3
        JobTag.objects.all().delete()

    pair = (changes, take) if edit_first else (take, changes)
    assert walk(add, *pair, check, stride=2) > 1


@pytest.mark.parametrize("edit_first", [True, False], ids=["edit first", "cancel first"])
def test_a_job_that_is_canceled_is_changed_before_that_or_not_at_all(edit_first):
    def check(job_id, outcomes):
        changed, canceled = outcomes if edit_first else outcomes[::-1]
        assert canceled is True
        assert job(job_id).status == Job.Status.CANCELED
        assert job(job_id).priority == (3 if changed else 0)
        assert JobTag.objects.filter(job_id=job_id).exists() is changed
        assert drained() == []

    pair = (changes, cancel) if edit_first else (cancel, changes)
    assert walk(add, *pair, check, stride=2) > 1


@pytest.mark.parametrize("edit_first", [True, False], ids=["edit first", "enqueue first"])
@pytest.mark.parametrize(
    "given", [{"args": ["ben", 2]}, {"args": ["ben", 1]}, {"queue": "slow"}], ids=["other key", "same key", "queue"]
)
def test_an_enqueue_that_replaces_a_job_and_an_edit_leave_what_one_after_the_other_would(given, edit_first):
    def change(job_id):
        return edit(job_id, **given)

    def replace(job_id):
        return int(report.enqueue("cid", 1).id)

    def check(job_id, outcomes):
        changed, enqueued = outcomes if edit_first else outcomes[::-1]
        assert changed is True
        check_lanes()
        rows = {one.pk: (one.queue, tuple(one.payload["args"])) for one in Job.objects.all()}
        edited = given.get("queue", "q"), tuple(given.get("args", ("ann", 1)))
        after = rows[job_id]
        if enqueued != job_id:  # the edit came first, and the key was free
            assert rows == {job_id: edited, enqueued: ("q", ("cid", 1))}
        elif "queue" in given:  # the enqueue came first
            assert rows == {job_id: ("slow", ("cid", 1))}
        else:  # the later one of both has the job
            assert len(rows) == 1
            assert after in (edited, ("q", ("cid", 1)))
        assert sorted(drained()) == sorted(args for _, args in rows.values())

    pair = (change, replace) if edit_first else (replace, change)
    assert walk(add, *pair, check, stride=4) > 1


def test_two_edits_leave_what_one_after_the_other_would():
    def first(job_id):
        return edit(job_id, args=["ben", 2])

    def second(job_id):
        return edit(job_id, args=["cid", 3], queue="slow")

    def check(job_id, outcomes):
        assert outcomes == (True, True)
        check_lanes()
        assert (job(job_id).queue, job(job_id).payload["args"]) in [("slow", ["cid", 3]), ("slow", ["ben", 2])]
        assert len(drained()) == 1

    assert walk(add, first, second, check, stride=4) > 1


def test_two_jobs_cannot_get_one_key():
    def prepare():
        return add(n=1), int(report.enqueue("ben", 2).id)

    def check(ids, outcomes):
        assert sum(outcome is True for outcome in outcomes) == 1
        assert sum(isinstance(outcome, InvalidValue) for outcome in outcomes) == 1
        assert Job.objects.filter(dedupe_key=b"number-3").count() == 1
        check_lanes()

    def change(place):
        return lambda ids: edit(ids[place], args=["cid", 3])

    assert walk(prepare, change(0), change(1), check, stride=4) > 1


@pytest.mark.skipif(VENDOR == "sqlite", reason="the write lock of SQLite is held by the whole transaction")
class TestWhileATransactionHasItsNewOrderingKey:
    def test_an_edit_waits_for_it_and_nobody_waits_for_the_edit(self):
        job_id = add()
        with holding(lambda: report.enqueue("ben", 5)):
            waiting = Actor(edit, job_id, args=["ben", 2])
            assert waiting.is_blocked()
            assert Actor(claim_one).result().job_id == job_id
        assert waiting.result() is False

    def test_a_cancel_does_not_wait_for_the_edit(self):
        job_id = add()
        with holding(lambda: report.enqueue("ben", 5)):
            waiting = Actor(edit, job_id, args=["ben", 2])
            assert waiting.is_blocked()
            assert Actor(cancel, job_id).result() is True
        assert waiting.result() is False

    def test_an_edit_that_leaves_the_key_alone_does_not_wait(self):
        job_id = add("ben")
        with holding(lambda: report.enqueue("ben", 5)):
            assert Actor(edit, job_id, priority=4).result() is True


@pytest.mark.skipif(VENDOR == "sqlite", reason="the write lock of SQLite is held by the whole transaction")
def test_a_claim_passes_by_a_job_whose_edit_is_not_committed():
    job_id, other = enqueue("q", 1, ordering_key="a"), enqueue("q", 2)
    with holding(lambda: edit(job_id, priority=9)):
        assert Actor(claim_one).result().job_id == other
    assert claim_one().job_id == job_id


def test_an_edit_that_is_rolled_back_leaves_nothing():
    job_id = add()
    with transaction.atomic():
        assert changes(job_id)
        transaction.set_rollback(True)
    assert drained() == [("ann", 1)]
    assert not JobTag.objects.exists()
