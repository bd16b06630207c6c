"""Two verbs on one job: the first to hold the row wins, the second changes nothing or acts on what it finds."""

import pytest
from django.db import connection

from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import LeaseLost
from jobqueue.models import Job, JobAttempt
from jobqueue.testing import travel
from jobqueue.transitions import ack, cancel, claim, discard, fail, heartbeat, reap, release, retry, snooze
from tests.factories import claim_one, expire, job, make_in_state, make_job, make_jobs, row, state
from tests.marks import committed
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = committed

SETTLE = {
    "ack": (lambda lease: ack(lease, result={"by": "ack"}), "DONE"),
    "fail": (lambda lease: fail(lease, error="boom"), "READY"),
    "snooze": (lambda lease: snooze(lease, delay_seconds=60), "READY"),
    "release": (release, "READY"),
    "reap": (lambda lease: reap(), "READY"),
}


def lapsed_lease():
    make_job()
    lease = claim_one()
    expire(lease)
    return lease


@pytest.mark.parametrize("second", SETTLE)
@pytest.mark.parametrize("first", SETTLE)
def test_of_two_settlers_the_first_wins_and_the_second_changes_nothing(first, second):
    lease = lapsed_lease()
    (win, end), (lose, _) = SETTLE[first], SETTLE[second]
    with holding(lambda: win(lease)):
        loser = Actor(lose, lease)
        if second == "reap" and VENDOR != "sqlite":
            assert loser.result().total == 0  # a reaper passes over locked rows
        else:
            assert loser.is_blocked()
    committed = row(lease.job_id)
    outcome = loser.outcome()
    assert isinstance(outcome, LeaseLost) or outcome.total == 0
    assert row(lease.job_id) == committed
    assert state(lease.job_id) == end
    assert JobAttempt.objects.count() == (first in ("fail", "reap"))


@pytest.mark.parametrize("second", [name for name in SETTLE if name != "reap"])
@pytest.mark.parametrize("first", SETTLE)
def test_when_the_first_settler_is_undone_the_second_wins(first, second):
    lease = lapsed_lease()
    (win, _), (lose, end) = SETTLE[first], SETTLE[second]
    with holding(lambda: win(lease), commit=False):
        loser = Actor(lose, lease)
        assert loser.is_blocked()
    loser.result()
    assert state(lease.job_id) == end


@pytest.mark.parametrize(
    "pair", [("ack", "reap"), ("fail", "reap"), ("ack", "fail"), ("release", "ack"), ("fail", "fail"), ("ack", "ack")]
)
def test_two_settlers_let_loose_have_exactly_one_winner(pair):
    for _ in range(12):
        lease = lapsed_lease()
        outcomes = all_at_once([lambda v=verb: SETTLE[v][0](lease) for verb in pair])  # noqa: B023
        assert sum(isinstance(o, LeaseLost) or getattr(o, "total", 1) == 0 for o in outcomes) == 1, outcomes
        assert job(lease.job_id).fence == 1
        Job.objects.all().delete()


def test_a_cancel_that_comes_first_turns_the_failure_into_canceled():
    make_job()
    lease = claim_one()
    with holding(lambda: cancel(lease.job_id)) as asked:
        failing = Actor(fail, lease, error="boom")
        assert failing.is_blocked()
    assert asked is True
    assert failing.result() is Job.Status.CANCELED
    assert state(lease.job_id) == "CANCELED"


def test_a_cancel_that_comes_second_cancels_the_waiting_retry():
    make_job()
    lease = claim_one()
    with holding(lambda: fail(lease, error="boom")):
        canceling = Actor(cancel, lease.job_id)
        assert canceling.is_blocked()
    assert canceling.result() is True
    assert state(lease.job_id) == "CANCELED"


def test_cancel_after_ack_is_false_and_ack_after_cancel_is_done():
    make_jobs(2)
    one, two = claim("q", 2, worker="w")
    with holding(lambda: ack(one)):
        canceling = Actor(cancel, one.job_id)
        assert canceling.is_blocked()
    assert canceling.result() is False
    with holding(lambda: cancel(two.job_id)):
        acking = Actor(ack, two)
        assert acking.is_blocked()
    acking.result()
    assert (state(one.job_id), state(two.job_id)) == ("DONE", "DONE")


def test_a_failure_and_a_cancel_let_loose_always_end_canceled():
    for _ in range(12):
        make_job()
        lease = claim_one()
        _, canceled = all_at_once([lambda: fail(lease, error="x"), lambda: cancel(lease.job_id)])  # noqa: B023
        assert canceled is True
        assert state(lease.job_id) == "CANCELED"


def test_a_heartbeat_that_comes_first_saves_its_job_from_the_reaper():
    def reap_later():
        connection.ensure_connection()
        # After the old end of the lease, and before the new one.
        with travel(120):
            return reap()

    make_job()
    lease = claim_one(lease_seconds=60)
    with holding(lambda: heartbeat(lease, lease_seconds=3600)):
        reaping = Actor(reap_later)
        if VENDOR != "sqlite":
            assert reaping.result().total == 0
    assert reaping.result().total == 0
    ack(lease)
    assert state(lease.job_id) == "DONE"


def test_a_heartbeat_that_comes_after_the_reaper_is_refused():
    make_job()
    lease = claim_one()
    expire(lease)
    with holding(reap) as reaped:
        beating = Actor(heartbeat, lease, lease_seconds=60)
        assert beating.is_blocked() or isinstance(beating.outcome(), LeaseLost)
    assert reaped.requeued == 1
    before = row(lease.job_id)
    assert isinstance(beating.outcome(), LeaseLost)
    assert row(lease.job_id) == before


@pytest.mark.parametrize("threads", [2, 6])
def test_racing_reapers_end_every_lease_exactly_once(threads):
    make_jobs(60)
    expire(*claim("q", 60, worker="w"))

    def sweep():
        total = 0
        while Job.objects.lapsed().exists():
            total += reap(limit=7).total
        return total

    outcomes = all_at_once([sweep] * threads)
    assert sum(outcomes) == 60
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    assert JobAttempt.objects.count() == 60


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time: a second reaper waits for the first")
def test_a_second_reaper_takes_other_leases_while_the_first_is_open():
    make_jobs(20)
    expire(*claim("q", 20, worker="w"))
    with holding(lambda: reap(limit=5)) as first:
        second = Actor(reap, 5).result()
        rest = Actor(reap, 100).result()
    assert (first.total, second.total, rest.total) == (5, 5, 10)
    assert JobAttempt.objects.count() == 20


@pytest.mark.parametrize(
    ("name", "verbs"), [("FAILED", (retry, discard)), ("FAILED", (retry, retry)), ("READY", (cancel, discard))]
)
def test_two_operators_at_once_have_one_winner(name, verbs):
    for _ in range(6):
        job_id = make_in_state(name)
        epoch = job(job_id).epoch
        answers = all_at_once([lambda v=verb: v(job_id) for verb in verbs])  # noqa: B023
        # A retried job is READY, so a discard that comes second may act on it; nothing may act twice.
        assert True in answers
        assert job(job_id).epoch - epoch <= 1
        if verbs[0] is verbs[1] or name == "READY":
            assert sorted(answers) == [False, True]
        Job.objects.all().delete()


def test_everything_at_once_keeps_every_row_whole():
    """Claim, ack, fail, release, reap and cancel let loose on the same jobs: no orphan columns, no attempt lost."""
    ids = make_jobs(40)

    def work(name):
        for _ in range(40):
            for number, lease in enumerate(claim("q", 3, worker=name)):
                try:
                    (ack, lambda x: fail(x, error="x", delay_seconds=0), release)[number](lease)
                except LeaseLost:
                    continue

    def sweep():
        for _ in range(20):
            # This statement is the test's own and may be a deadlock's victim like any other.
            lapse = Job.objects.filter(status=1)
            retry_transient(
                "bulk", lambda lapse=lapse: lapse.update(lock_until="2020-01-01T00:00:00Z"), using="default"
            )
            reap()

    def stop():
        return [cancel(job_id) for job_id in ids[::7]]

    outcomes = all_at_once([lambda: work("a"), lambda: work("b"), sweep, stop])
    assert outcomes[:3] == [None] * 3, outcomes
    expire(*Job.objects.filter(status=1).values_list("pk", flat=True))
    reap()
    assert JobAttempt.objects.count() == sum(Job.objects.values_list("attempts", flat=True))
    for found in Job.objects.all():
        assert (found.locked_by, found.lock_token, found.locked_at, found.lock_until) == (None,) * 4
        assert (found.finished_at is not None) == (found.status in (2, 3, 4))
