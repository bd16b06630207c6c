"""A commit whose answer is lost: what comes after it, signals and wake-ups, comes all the same, and once."""

from __future__ import annotations

import pytest

from jobqueue import bulk_verbs, enqueue, enqueue_many, wakeup
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.models import Job, OutboxEvent
from jobqueue.outbox import operator
from jobqueue.runs.bulk_steps import step
from jobqueue.signals import job_canceled, job_enqueued
from jobqueue.transitions import ack, claim
from tests.factories import claim_one, make_job, set_columns, state
from tests.marks import committed, finding, on_a_wire
from tests.outbox.helpers import event, say
from tests.proxy import COMMIT, cutting_proxy
from tests.settings import VENDOR

pytestmark = [committed, on_a_wire]


@pytest.fixture
def heard():
    """What was said: (what, job id)."""
    said = []

    def canceled(job_id, **facts):
        said.append(("canceled", job_id))

    def enqueued(job_id, **facts):
        said.append(("enqueued", job_id))

    job_canceled.connect(canceled)
    job_enqueued.connect(enqueued)
    yield said
    job_canceled.disconnect(canceled)
    job_enqueued.disconnect(enqueued)


@pytest.fixture
def notified(monkeypatch):
    """The queues for which this process has sent wake-ups."""
    queues = []
    monkeypatch.setattr(wakeup, "_callback", lambda queue, using: queues.append(queue))
    return queues


def late(**columns):
    return make_job(expires_at=UtcNowPlus(-1), **columns)


# The first pass of a claim on PostgreSQL is one statement; those behind it are transactions.
@finding("A14")
def test_a_claim_tells_of_expired_jobs_that_its_lost_commit_has_ended(heard):
    expired = [late(), late(), late()]
    make_job()
    del heard[:]
    with cutting_proxy() as proxy:
        proxy.cut(COMMIT)
        claim("q", 1, worker="w")
        assert proxy.cuts == 1
    assert {state(job_id) for job_id in expired} == {"CANCELED"}
    assert sorted(heard) == [("canceled", job_id) for job_id in expired]


@finding("A14")
def test_a_key_goes_on_after_a_claim_whose_lost_commit_has_ended_its_expired_job():
    if VENDOR == "postgres":
        late()
    first, second = (enqueue("q", n, ordering_key="k") for n in range(2))
    set_columns(first, expires_at=UtcNowPlus(-1))
    with cutting_proxy() as proxy:
        proxy.cut(COMMIT)
        leases = claim("q", 1, worker="w")
        assert proxy.cuts >= 1
    assert state(first) == "CANCELED"
    assert second in [lease.job_id for lease in leases] or claim_one().job_id == second


def test_a_claim_tells_once_of_expired_jobs_that_its_second_try_has_ended(heard):
    expired = [late(), late()]
    del heard[:]
    with cutting_proxy() as proxy:
        proxy.cut(r"UPDATE .job_queue. SET .status. = 4")
        claim("q", 1, worker="w")
        assert proxy.cuts == 1
    assert sorted(heard) == [("canceled", job_id) for job_id in expired]


ENQUEUES = {
    "one": lambda **more: [enqueue("q", 1, dedupe_key="k", **more)],
    "many": lambda **more: enqueue_many("q", [1, 2], dedupe_keys=["k", "l"], **more),
    "some with a key": lambda **more: enqueue_many("q", [1, 2, 3], dedupe_keys=["k", "l", "k"], **more),
}


@pytest.mark.parametrize(
    "needle",
    [pytest.param(COMMIT, marks=finding("A14"), id="commit"), pytest.param("INSERT INTO .job_queue", id="insert")],
)
@pytest.mark.parametrize("name", ENQUEUES)
def test_a_keyed_enqueue_that_finds_its_own_jobs_tells_of_them_once(name, needle, heard, notified):
    with cutting_proxy() as proxy:
        proxy.cut(needle)
        ids = ENQUEUES[name]()
        assert proxy.cuts == 1
    assert sorted(heard) == [("enqueued", job_id) for job_id in sorted(set(ids))]
    assert set(notified) == {"q"}
    assert Job.objects.count() == len(set(ids))


@finding("A14")
@pytest.mark.parametrize("name", ENQUEUES)
def test_a_keyed_enqueue_whose_commit_answer_was_lost_lets_its_ordering_key_go_on(name):
    with cutting_proxy() as proxy:
        proxy.cut(COMMIT)
        ids = ENQUEUES[name](ordering_key="o")
        assert proxy.cuts == 1
    assert claim_one().job_id == ids[0]


def test_a_keyed_enqueue_tells_nothing_of_a_job_that_was_there(heard, notified):
    job_id = make_job(dedupe_key=b"k")
    del heard[:], notified[:]
    with cutting_proxy() as proxy:
        proxy.cut(r"SELECT")
        assert enqueue("q", 1, dedupe_key="k") == job_id
        assert proxy.cuts == 1
    assert heard == notified == []


@finding("A14")
def test_the_next_job_of_a_key_is_rung_for_though_the_answer_to_its_opening_was_lost(notified):
    _, second = (enqueue("q", n, ordering_key="k") for n in range(2))
    lease = claim_one()
    del notified[:]
    with cutting_proxy() as proxy:
        # The ack is one statement that commits by itself.
        proxy.cut(COMMIT)
        ack(lease)
        assert proxy.cuts == 1
    assert notified == ["q"]
    assert claim_one().job_id == second


OPERATORS = {
    "retry": (operator.retry, lambda row: row.failed_at is None),
    "skip": (operator.skip, lambda row: row.failed_at is not None and row.lane is None),
    "discard": (operator.discard, lambda row: row.processed_at is not None),
}


@finding("A14")
@pytest.mark.parametrize("verb", OPERATORS)
def test_a_verb_for_events_that_were_set_aside_says_that_it_was_done(verb):
    act, done = OPERATORS[verb]
    event_id = say("t", 1, "k")
    OutboxEvent.objects.filter(pk=event_id).update(failed_at=UtcNow(), due_at=None)
    with cutting_proxy() as proxy:
        proxy.cut("UPDATE .job_outbox.")
        assert act(event_id) is True
        assert proxy.cuts == 1
    assert done(event(event_id))
    assert act(event_id) is False


def test_a_bulk_verb_tells_of_the_jobs_that_its_lost_commit_has_canceled(heard):
    ids = [make_job(), make_job()]
    bulk_verbs.record("cancel", {"queue": "q"}, who=bulk_verbs.Who(program="a test"))
    del heard[:]
    with cutting_proxy() as proxy:
        proxy.cut(COMMIT)
        done = step(using="default")
    assert proxy.cuts == 1
    assert (done.changed, done.refused, done.phase) == (2, 0, "done")
    assert heard == [("canceled", job_id) for job_id in ids]
    assert step(using="default") is None
