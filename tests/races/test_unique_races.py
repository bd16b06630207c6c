"""Each mode of unique, asked for by 50 threads at once: one job holds the key, and everybody gets its id."""

import pytest

from jobqueue import task
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job
from jobqueue.transitions import ack, claim
from tests.factories import claim_one, set_columns
from tests.locks.helpers import MYSQL, repeatable_read
from tests.marks import committed
from tests.races.actors import Actor, all_at_once

pytestmark = committed
THREADS = 50


@task(queue_name="q", dedupe_key="k")
def keyed(number):
    return number


TASKS = {
    "window": keyed,
    "waiting": keyed.using(unique="waiting"),
    "unfinished": keyed.using(unique="unfinished"),
    "seconds": keyed.using(unique_seconds=60),
    "waiting seconds": keyed.using(unique="waiting", unique_seconds=60),
    "replace": keyed.using(unique="waiting", on_conflict="replace"),
}


def race(task_):
    return {int(found.id) for found in all_at_once([lambda n=n: task_.enqueue(n) for n in range(THREADS)])}


@pytest.mark.parametrize("mode", TASKS)
def test_all_racers_get_the_one_job(mode):
    assert race(TASKS[mode]) == {Job.objects.get().pk}


def a_claim(job_id):
    claim_one()


def an_end(job_id):
    ack(claim_one())


def time(job_id):
    set_columns(job_id, created_at=UtcNowPlus(-61))


@pytest.mark.parametrize(
    ("mode", "passed"),
    [("waiting", a_claim), ("unfinished", an_end), ("seconds", time), ("waiting seconds", time), ("replace", a_claim)],
)
def test_when_the_key_is_free_again_all_racers_get_one_new_job(mode, passed):
    first = int(TASKS[mode].enqueue(0).id)
    passed(first)
    (second,) = race(TASKS[mode])
    assert second != first
    assert Job.objects.count() == 2


@pytest.mark.parametrize("mode", ["waiting", "replace"])
def test_while_the_waiting_job_is_claimed_racers_get_it_or_one_new_job(mode):
    first = int(TASKS[mode].enqueue(0).id)
    calls = [lambda n=n: int(TASKS[mode].enqueue(n).id) for n in range(THREADS - 1)]
    calls.insert(THREADS // 2, lambda: claim("q", worker="w"))
    results = all_at_once(calls)
    ids = {found for found in results if isinstance(found, int)}
    others = ids - {first}
    assert len(others) <= 1
    assert Job.objects.count() == 1 + len(others)
    # A claim passes the row by while an enqueue has it locked.
    claimed = Job.objects.get(pk=first).fence > 0
    holding = {*Job.objects.filter(dedupe_key=b"k").values_list("pk", flat=True)}
    assert holding == (others if claimed else {first})


def test_racing_bulks_of_the_same_calls_add_each_job_once():
    waiting = TASKS["waiting"].using(dedupe_key=lambda number: f"k-{number}")
    calls = [(n,) for n in range(20)]
    found = all_at_once([lambda: tuple(r.id for r in waiting.enqueue_many(calls))] * 10)
    assert len({*found}) == 1
    assert Job.objects.count() == 20


@pytest.mark.skipif(not MYSQL, reason="the others refuse a write that an old snapshot leads to")
def test_a_job_that_was_claimed_after_the_snapshot_is_followed_by_a_new_one_with_the_new_arguments():
    first = int(TASKS["replace"].enqueue(0).id)

    def look_first():
        with repeatable_read():
            assert Job.objects.get().status == Job.Status.READY
            Actor(claim_one).result()
            return int(TASKS["replace"].enqueue(1).id)

    second = Actor(look_first).result()
    assert second != first
    assert Job.objects.get(pk=second).payload["args"] == [1]
