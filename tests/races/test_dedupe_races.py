"""One key asked for by many at once: one job, and everybody gets its id."""

import pytest
from django.db import connection, transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import DedupeConflict, ResultError
from jobqueue.models import Job
from jobqueue.transitions import ack, cancel, fail, retry
from tests.app.tasks import add
from tests.factories import claim_one, make_job, set_columns
from tests.marks import committed
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = committed


def keyed(number=0):
    return enqueue("q", number, dedupe_key="k")


@pytest.mark.parametrize("threads", [2, 20])
def test_all_racers_get_the_one_job(threads):
    ids = all_at_once([lambda n=n: keyed(n) for n in range(threads)])
    assert ids == [Job.objects.get().pk] * threads


def test_racing_tasks_get_the_one_job():
    ids = all_at_once([lambda: add.using(dedupe_key="k").enqueue(1, 2).id] * 8)
    assert ids == [str(Job.objects.get().pk)] * 8


def test_a_racer_waits_for_a_winner_that_has_not_committed_yet():
    with holding(keyed) as winner:
        loser = Actor(keyed)
        assert loser.is_blocked()
    assert loser.result() == winner
    assert Job.objects.count() == 1


def test_when_the_winner_rolls_back_a_loser_inserts():
    with holding(keyed, commit=False) as winner:
        loser = Actor(lambda: keyed(1))
        assert loser.is_blocked()
    found = loser.result()
    assert (Job.objects.get().pk, Job.objects.get().payload) == (found, 1)
    assert winner is not None


def test_when_the_winner_rolls_back_exactly_one_of_many_losers_inserts():
    with holding(keyed, commit=False):
        losers = [Actor(keyed) for _ in range(8)]
        assert all(loser.is_blocked() for loser in losers[:1])
    outcomes = {loser.outcome() for loser in losers}
    assert outcomes == {Job.objects.get().pk}


def test_a_racer_inside_its_own_transaction_gets_the_job_and_goes_on():
    def in_a_transaction():
        enqueue("q", "mine")
        found = keyed()
        enqueue("q", "mine too")
        return found

    with holding(keyed) as winner:
        loser = Actor(lambda: _atomically(in_a_transaction))
        assert loser.is_blocked()
    assert loser.result() == winner
    assert Job.objects.count() == 3


def test_a_snapshot_older_than_the_winner_still_finds_it():
    """At REPEATABLE READ the winner is not in the loser's snapshot; it must still get the id, or a clear refusal."""

    def look_first():
        Job.objects.count()
        other = Actor(keyed) if not _one_writer() else None
        winner = other.result() if other else keyed()
        return winner, keyed(1)

    try:
        winner, found = _atomically(look_first)
    except DedupeConflict:
        assert Job.objects.count() == 1
    else:
        assert found == winner
    assert Job.objects.count() == 1


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="only they show a key that their snapshot does not")
def test_a_task_whose_snapshot_is_older_than_the_winner_gets_its_id():
    def look_first():
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic():
            Job.objects.count()
            winner = Actor(lambda: add.using(dedupe_key="k").enqueue(1, 2).id).result()
            return winner, add.using(dedupe_key="k").enqueue(3, 4)

    winner, found = Actor(look_first).result()
    assert (found.id, found.args) == (winner, [3, 4])
    assert Job.objects.count() == 1


def test_racing_batches_with_the_same_keys_make_each_job_once():
    keys = [str(n) for n in range(30)]

    def add_all(order):
        found = enqueue_many("q", list(order), dedupe_keys=list(order))
        return dict(zip(order, found, strict=True))

    outcomes = all_at_once([lambda: add_all(keys), lambda: add_all(keys[::-1]), lambda: add_all(keys[10:] + keys[:10])])
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert Job.objects.count() == 30


def test_a_key_whose_hold_has_run_out_goes_to_one_of_the_racers():
    first = keyed()
    ack(claim_one())
    set_columns(first, finished_at=UtcNowPlus(-90_000))
    ids = set(all_at_once([keyed] * 10))
    assert len(ids) == 1
    assert first not in ids
    assert Job.objects.count() == 2


@pytest.mark.parametrize("commit", [True, False])
def test_a_retry_that_races_with_an_enqueue_of_its_old_key_has_one_winner(commit):
    first = keyed()
    fail(claim_one(), error=ResultError("dead at once"))
    set_columns(first, finished_at=UtcNowPlus(-90_000))
    cancel(keyed(1))  # takes the key over from the first
    second = Job.objects.latest("pk").pk
    set_columns(second, finished_at=UtcNowPlus(-90_000))
    with holding(lambda: keyed(2), commit=commit):
        retrying = Actor(retry, first)
        retrying.is_blocked()
    assert retrying.outcome() is (not commit)
    assert Job.objects.filter(status__in=(0, 1)).count() == 1


def test_an_uncommitted_loser_does_not_keep_the_winner_from_finishing():
    keyed()
    lease = claim_one()
    with holding(lambda: keyed(1)) as found:
        assert found == lease.job_id
        if not _one_writer():
            Actor(ack, lease).result()
    assert make_job()


def _atomically(work):
    with transaction.atomic():
        return work()


def _one_writer():
    return VENDOR == "sqlite"
