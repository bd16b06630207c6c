"""Workers are woken after a commit and only then; an unreachable notifier costs nothing."""

import logging
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from redis import Redis

from jobqueue import enqueue, enqueue_many, wakeup
from jobqueue.exceptions import PayloadError
from jobqueue.transitions import cancel, release_held, retry
from jobqueue.wakeup import notifiers as redis_notifier
from jobqueue.wakeup.notifiers import PAUSE_SECONDS
from tests import memories
from tests.app import tasks
from tests.factories import claim_one, make_in_state, make_job, state, undone
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.races.actors import Actor
from tests.settings import VENDOR

pytestmark = committed
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has notified of nothing yet."""
    monkeypatch.setattr(wakeup, "_callback", None)
    # On a busy machine a server of one's own takes its time, and twenty enqueues as well.
    monkeypatch.setattr(redis_notifier, "WAIT_SECONDS", 30)
    monkeypatch.setattr(redis_notifier, "PAUSE_SECONDS", 600)


@pytest.fixture
def notified(fresh):
    """The queues that this process was notified of."""
    heard = []
    wakeup.on_notify(lambda queue, using: heard.append(queue))
    return heard


@pytest.fixture(params=["redis", "auto"] if VENDOR == "postgres" else ["redis"])
def subscription(request, settings, fresh):
    """Another session that listens."""
    settings.JOBQUEUE = {"WAKEUP": request.getfixturevalue("redis_url") if request.param == "redis" else request.param}
    notifier = wakeup.notifier_of("default")
    listening = notifier.subscribe()
    listening.receive(0)
    yield listening
    listening.close()


@pytest.mark.parametrize(
    "add",
    [
        lambda: enqueue("q", 1),
        lambda: enqueue("q", 1, dedupe_key="k"),
        lambda: enqueue_many("q", [1, 2, 3]),
        lambda: enqueue_many("q", [1, 2, 3], dedupe_keys=["a", "b", "c"]),
        lambda: tasks.add.using(queue_name="q").enqueue(1, 2),
    ],
    ids=["enqueue", "keyed", "many", "many keyed", "task"],
)
def test_every_way_of_adding_jobs_rings_once_after_its_commit(notified, add):
    add()
    assert notified == ["q"]
    with transaction.atomic():
        add()
        with transaction.atomic():
            enqueue("inner", 1)
        assert notified == ["q"]
    assert "inner" in notified


def test_a_rollback_rings_for_nobody(notified):
    with undone():
        enqueue("q", 1)
        enqueue_many("q", [1, 2])
    with transaction.atomic():
        with undone():
            enqueue("q", 1)
        enqueue("kept", 1)
    assert notified == ["kept"]


def test_what_is_not_added_does_not_ring(notified):
    with pytest.raises(PayloadError):
        enqueue("q", object())
    enqueue_many("q", [])
    assert notified == []
    enqueue("q", 1, dedupe_key="k")
    enqueue("q", 1, dedupe_key="k")
    assert notified == ["q"]


def test_a_delayed_job_does_not_ring(notified):
    enqueue("q", 1, run_at=datetime.now(UTC) + timedelta(hours=1))
    tasks.add.using(run_after=timedelta(hours=1) + datetime.now(UTC)).enqueue(1, 2)
    assert notified == []
    enqueue("q", 1, run_at=datetime.now(UTC) - timedelta(seconds=1))
    assert notified == ["q"]


def test_an_operator_who_makes_a_job_due_rings(notified):
    failed, held = make_in_state("FAILED"), make_job("held")
    claim_one("held")
    notified.clear()
    assert retry(failed)
    assert release_held(held)
    assert notified == ["q", "held"]
    assert not retry(held)
    assert cancel(failed)
    assert notified == ["q", "held"]


def test_without_a_commit_that_django_sees_nothing_is_rung_and_nothing_fails(notified):
    transaction.set_autocommit(False)
    try:
        enqueue("q", 1)
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert notified == []


def test_an_answer_that_raises_does_not_reach_the_enqueuer(fresh, caplog):
    wakeup.on_notify(lambda queue, using: 1 / 0)
    assert enqueue("q", 1)
    assert "division by zero" in caplog.text


def nothing_before_the_next(subscription):
    """Whether a wake-up that another session sends now is the first to be heard."""
    Actor(wakeup.notifier_of("default").notify, "the next").result()
    return subscription.receive(patient()) == ["the next"]


def test_another_session_hears_the_queue_after_the_commit_and_not_before(subscription):
    with transaction.atomic():
        enqueue("naïve queue \u2603", 1)
        assert nothing_before_the_next(subscription)
    assert subscription.receive(patient()) == ["naïve queue \u2603"]
    with undone():
        enqueue("q", 1)
    assert nothing_before_the_next(subscription)


def test_a_burst_is_one_ring_and_the_next_burst_another(subscription, monkeypatch):
    # However long twenty enqueues take here.
    monkeypatch.setattr(wakeup, "QUIET_SECONDS", 60)
    memories.reset()
    with transaction.atomic():
        for n in range(20):
            enqueue("q", n)
    assert subscription.receive(patient()) == ["q"]
    assert nothing_before_the_next(subscription)
    monkeypatch.setattr(wakeup, "QUIET_SECONDS", 0)
    enqueue("q", 1)
    assert subscription.receive(patient()) == ["q"]


def test_the_listener_is_alive_and_hears_after_it_was_asked(subscription):
    subscription.check()

    def answered():
        subscription.receive(0)
        # PostgreSQL's answer is there at once, that of Redis is heard.
        return not getattr(subscription, "_pinged", False)

    wait_until(answered)
    subscription.check()
    enqueue("q", 1)
    assert subscription.receive(patient()) == ["q"]


def test_a_listener_of_redis_that_has_heard_no_answer_is_not_asked_again(redis_url):
    subscription = redis_notifier.RedisNotifier(redis_url).subscribe()
    try:
        subscription.check()
        with pytest.raises(TimeoutError, match="no answer to PING"):
            subscription.check()
    finally:
        subscription.close()


def test_off_means_that_nobody_outside_is_rung(settings):
    settings.JOBQUEUE = {"WAKEUP": "off"}
    assert wakeup.notifier_of("default") is None


def test_auto_is_notify_on_postgresql_and_polling_elsewhere():
    assert (wakeup.notifier_of("default") is not None) == (VENDOR == "postgres")


def test_a_redis_that_is_away_costs_one_line_and_no_job(settings, caplog, monkeypatch):
    settings.JOBQUEUE = {"WAKEUP": NOBODY}
    tried, begun, publish = [], time.monotonic(), Redis.publish
    monkeypatch.setattr(Redis, "publish", lambda *args: tried.append(args) or publish(*args))
    with caplog.at_level(logging.INFO, "jobqueue.wakeup"):
        ids = [enqueue(f"q{n}", n) for n in range(20)]
    assert len(set(ids)) == 20
    assert 1 <= len(tried) <= 1 + (time.monotonic() - begun) / PAUSE_SECONDS, (
        "it was tried again before its pause was over"
    )
    assert [r.getMessage() for r in caplog.records if "Connection refused" in r.getMessage()] == [
        r.getMessage() for r in caplog.records
    ]
    assert len(caplog.records) == 1


def test_a_missing_redis_py_is_said_and_costs_no_job(settings, caplog, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    settings.JOBQUEUE = {"WAKEUP": NOBODY}
    assert enqueue("q", 1)
    assert "pip install redis" in caplog.text


@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL has NOTIFY")
def test_a_session_that_ends_between_commit_and_ring_costs_no_job_and_no_later_statement(fresh, caplog):
    def before(execute, sql, params, many, context):
        if "pg_notify" in sql:
            connection.connection.close()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(before):
        job_id = enqueue("q", 1)
    assert "find it at their next poll" in caplog.text
    assert state(job_id) == "READY"
