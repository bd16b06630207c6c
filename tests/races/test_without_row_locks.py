"""No verb rests on row locks: on a server that ignores them, the conditions of its writes still decide.

Some servers parse FOR UPDATE SKIP LOCKED and lock nothing. Here the words are taken out of one session's statements,
and another session is let in between what that session reads and what it writes.
"""

import re
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import LockNotAcquired
from jobqueue.locks import lease_lock
from jobqueue.models import Job
from jobqueue.outbox import publish
from jobqueue.outbox.claiming import EventClaimer
from jobqueue.transitions import ack, cancel, claim, discard, reap, release, retry
from jobqueue.transitions.leases import free_of
from jobqueue.transitions.releasing import release_many
from jobqueue.transitions.renewing import renew_in_hand
from tests.factories import claim_one, expire, job, make_in_state, make_job, make_jobs, set_columns, state
from tests.marks import committed
from tests.races.actors import Actor
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks no rows: its transactions write one after another"),
]
LOCKS = re.compile(r" FOR (UPDATE|NO KEY UPDATE|SHARE)( OF [\w`\", ]+)?( SKIP LOCKED| NOWAIT)?")


@contextmanager
def overtaken_by(other, table="job_queue"):
    """This session locks no rows that it reads; before its first UPDATE of `table` another session does `other`."""
    waiting = [other]

    def run(execute, sql, *rest):
        if waiting and sql.startswith("UPDATE") and table in sql:
            Actor(waiting.pop()).result()
        return execute(LOCKS.sub("", sql), *rest)

    with connection.execute_wrapper(run):
        yield
    assert not waiting, "nothing was written"


@pytest.mark.skipif(VENDOR == "postgres", reason="PostgreSQL reads and writes by one statement, and keeps its word")
def test_a_claimer_that_was_overtaken_takes_what_is_left():
    first, second = make_jobs(2)
    with overtaken_by(lambda: claim("q", 1, worker="b")):
        leases = claim("q", 2, worker="a")
    assert [lease.job_id for lease in leases] == [second]
    assert job(first).locked_by == "b"


@pytest.mark.parametrize("verb", [cancel, discard])
def test_an_end_does_not_hit_a_job_that_was_claimed_meanwhile(verb):
    job_id = make_job()
    with overtaken_by(lambda: claim("q", 1, worker="b")):
        assert not verb(job_id)
    assert (state(job_id), job(job_id).cancel_requested_at) == ("PROCESSING", None)


def test_a_wish_to_cancel_does_not_hit_the_next_run():
    job_id = make_job()
    lease = claim_one()

    def next_run():
        release(lease)
        claim_one(worker="b")

    with overtaken_by(next_run):
        assert not cancel(job_id)
    assert job(job_id).cancel_requested_at is None


def test_a_retry_does_not_hit_a_job_that_was_retried_and_ran_meanwhile():
    job_id = make_in_state("FAILED")

    def another_life():
        assert retry(job_id)
        ack(claim_one(job(job_id).queue, worker="b"))

    with overtaken_by(another_life):
        assert not retry(job_id)
    assert (state(job_id), job(job_id).epoch) == ("DONE", 1)


@pytest.mark.parametrize(("other", "end"), [(discard, "CANCELED"), (retry, "READY")])
def test_of_two_operators_the_second_changes_nothing(other, end):
    job_id = make_in_state("FAILED")
    with overtaken_by(lambda: other(job_id)):
        assert not retry(job_id)
    assert (state(job_id), job(job_id).epoch) == (end, int(other is retry))


def test_a_reaper_does_not_end_the_lease_of_the_next_run():
    make_job()
    lease = claim_one()
    expire(lease)

    def next_run():
        assert reap().total == 1
        claim_one(worker="b")

    with overtaken_by(next_run):
        reap()
    found = job(lease.job_id)
    assert (state(found.pk), found.locked_by, found.attempts) == ("PROCESSING", "b", 1)


def test_a_batch_that_gives_back_does_not_take_the_lease_of_the_next_run():
    make_job()
    lease = claim_one()

    def next_run():
        release(lease)
        claim_one(worker="b")

    with overtaken_by(next_run):
        release_many([lease])
    assert job(lease.job_id).locked_by == "b"


def renewed(lease, lease_seconds):
    return renew_in_hand([(lease.job_id, lease.token)], lease_seconds=lease_seconds, using="default")


def test_a_monitor_does_not_renew_the_lease_of_the_next_run():
    make_job()
    lease = claim_one(lease_seconds=60)

    def next_run():
        release(lease)
        claim_one(worker="b", lease_seconds=60)

    with overtaken_by(next_run):
        renewed(lease, 7200)
    found = job(lease.job_id)
    assert (found.lock_until - found.locked_at).total_seconds() == 60


def test_leases_of_former_runs_are_neither_free_nor_renewed():
    make_job()
    former = claim_one(lease_seconds=60)
    release(former)
    claim_one(worker="b", lease_seconds=60)
    before = Job.objects.get().lock_until
    assert free_of([former]) == []
    assert renewed(former, 7200) == {}
    assert Job.objects.get().lock_until == before


def test_a_monitor_does_not_revive_a_lease_that_ran_out():
    make_job()
    lease = claim_one(lease_seconds=60)
    expire(lease)
    before = Job.objects.get().lock_until
    assert renewed(lease, 60) == {}
    assert Job.objects.get().lock_until == before


def test_a_dedupe_key_whose_job_was_retried_meanwhile_stays_with_it():
    job_id = enqueue("q", 1, dedupe_key="k")
    assert discard(job_id)
    set_columns(job_id, finished_at=UtcNowPlus(-1_000_000))
    with overtaken_by(lambda: retry(job_id)):
        assert enqueue("q", 2, dedupe_key="k") == job_id
    assert (state(job_id), job(job_id).dedupe_key) == ("READY", b"k")


def test_of_two_who_saw_a_lease_lock_free_one_gets_it():
    with lease_lock("x", 60):
        pass
    winner = lease_lock("x", 60, 0)
    with overtaken_by(winner.acquire, "job_lock"), pytest.raises(LockNotAcquired):
        lease_lock("x", 60, 0).acquire()
    winner.release()


def test_of_two_relays_that_saw_the_same_events_one_gets_them():
    with transaction.atomic():
        publish("topic", {})
    first, second = (EventClaimer("default", lease_seconds=60) for _ in range(2))
    taken = []
    with overtaken_by(lambda: taken.append(second.claim(10)), "job_outbox"):
        assert first.claim(10) is None
    assert len(taken[0]) == 1
