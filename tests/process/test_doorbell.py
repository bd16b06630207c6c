"""A worker that polls once a minute starts a job at once when it is rung, and polls when nobody can ring."""

import os
import signal
import time

import pytest
from django.db import connection

from jobqueue import doorbell, enqueue
from jobqueue.conf import load
from jobqueue.doorbell.redis import RedisBell
from jobqueue.models import Worker
from tests.app import tasks
from tests.factories import state, wait_until
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = committed
RARELY = ("--poll", "60s..90s", "--lease", "600s")
AT_ONCE = 10.0  # seconds: far less than a poll


class Messenger:
    """How workers of this test are rung."""

    def __init__(self, value):
        self.value = value

    def sessions(self):
        """The ids of the sessions that listen."""
        if self.value != "auto":
            from redis import Redis

            with Redis.from_url(self.value) as client:
                return list(range(dict(client.pubsub_numsub("jobqueue"))[b"jobqueue"]))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
            return [row[0] for row in cursor.fetchall()]


@pytest.fixture(params=["redis", "auto"] if VENDOR == "postgres" else ["redis"])
def messenger(request, settings, monkeypatch):
    value = request.getfixturevalue("redis_url") if request.param == "redis" else request.param
    settings.JOBQUEUE = {"DOORBELL": value}
    monkeypatch.setenv("JOBQUEUE_TEST_DOORBELL", value)
    RedisBell.at.cache_clear()
    return Messenger(value)


def wait_until_idle(messenger=None, children=1):
    """Workers have come up, listen, and are past the second in which a fresh one looks every 5 ms."""
    wait_until(lambda: Worker.objects.filter(stopped_at=None).count() == children, what="the workers")
    if messenger is not None:
        wait_until(lambda: len(messenger.sessions()) == 1, what="a session that listens")
    time.sleep(1.5)


def silently(add):
    """add(), and nobody is told."""
    settings = load()
    object.__setattr__(settings, "doorbell", "off")
    try:
        return add()
    finally:
        load.cache_clear()


def runs_at_once(job_id):
    wait_until(lambda: state(job_id) == "DONE", AT_ONCE, "the end of the job")


@pytest.mark.parametrize("processes", [1, 3])
def test_an_idle_worker_starts_a_job_at_once(worker, messenger, processes):
    group = worker(*RARELY, "--processes", processes)
    wait_until_idle(messenger, processes)
    for n in range(3):
        runs_at_once(enqueue("webhooks", {"n": n}))
        time.sleep(1.2)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_burst_wakes_as_many_children_as_it_needs(worker, messenger, evidence, tmp_path):
    gate = tmp_path / "gate"
    worker(*RARELY, "--processes", 4, "--concurrency", 1)
    wait_until_idle(messenger, 4)
    for _ in range(4):
        tasks.gated.enqueue(str(gate))
    wait_until(lambda: len(evidence.read("start")) == 4, AT_ONCE, "four starts")
    gate.touch()


def test_a_ring_for_a_queue_that_is_not_served_wakes_nobody(worker, messenger):
    worker(*RARELY, "webhooks")
    wait_until_idle(messenger)
    waits = silently(lambda: enqueue("webhooks", {"n": 1}))
    other = enqueue("other", {"n": 1})
    time.sleep(1.0)
    assert (state(waits), state(other)) == ("READY", "READY")
    enqueue("webhooks", {"n": 2})
    runs_at_once(waits)


def test_a_session_that_was_ended_is_replaced(worker, messenger):
    worker(*RARELY)
    wait_until_idle(messenger)
    old = messenger.sessions()
    if messenger.value == "auto":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", old)
        wait_until(lambda: messenger.sessions() not in ([], old), what="another session that listens")
    else:
        from redis import Redis

        with Redis.from_url(messenger.value) as client:
            client.client_kill_filter(_type="pubsub")
        wait_until(lambda: messenger.sessions() == [], what="the end of the session")
        wait_until(messenger.sessions, what="another session that listens")
    runs_at_once(enqueue("webhooks", {"n": 1}))


def test_a_new_keeper_listens_again(worker, messenger):
    group = worker(*RARELY)
    wait_until_idle(messenger)
    children = set(Worker.objects.values_list("pid", flat=True))
    (keeper,) = set(group.members()) - children - {group.pid}
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: "starting another" in group.text(), what="a new keeper")
    wait_until(lambda: len(group.members()) == 3 and keeper not in group.members())
    time.sleep(1.0)
    wait_until(lambda: len(messenger.sessions()) == 1, what="a session that listens")
    runs_at_once(enqueue("webhooks", {"n": 1}))


def test_a_replaced_child_is_rung_and_pipes_do_not_pile_up(worker, messenger):
    group = worker(*RARELY)
    wait_until_idle(messenger)
    before = len(os.listdir(f"/proc/{group.pid}/fd"))
    for generation in range(2, 5):
        os.kill(Worker.objects.latest("pk").pid, signal.SIGKILL)
        wait_until(lambda g=generation: Worker.objects.filter(name__endswith=f"/1.{g}").exists(), what="a new child")
        time.sleep(1.5)
        runs_at_once(enqueue("webhooks", {"n": 1}))
    assert len(os.listdir(f"/proc/{group.pid}/fd")) == before


def test_a_listener_that_hears_nothing_sends_nothing(worker, redis_url):
    from redis import Redis

    group = worker(*RARELY, JOBQUEUE_TEST_DOORBELL=redis_url)
    wait_until_idle(Messenger(redis_url))
    with Redis.from_url(redis_url) as client:
        before = client.info("stats")["total_commands_processed"]
        time.sleep(1.0)
        assert client.info("stats")["total_commands_processed"] - before <= 1, group.text()


def test_a_job_wakes_its_own_worker_on_every_database_without_any_messenger(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    tasks.enqueues_late.enqueue(str(gate))
    worker(*RARELY, JOBQUEUE_TEST_DOORBELL="off")
    wait_until(lambda: evidence.read("effect"), AT_ONCE, "the second job")
    gate.touch()


def test_a_job_whose_child_is_full_wakes_a_sibling(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    group = worker(*RARELY, "--processes", 2, "--concurrency", 1, JOBQUEUE_TEST_DOORBELL="off")
    wait_until(lambda: Worker.objects.filter(stopped_at=None).count() == 2, what="the workers")
    # One child takes it in its first second, when it still looks often.
    tasks.enqueues_late.enqueue(str(gate))
    (first,) = wait_until(lambda: evidence.read("start"), what=f"the first job: {group.text()}")
    (second,) = wait_until(lambda: evidence.read("effect"), AT_ONCE, "the second job")
    assert first[1] != second[1]
    gate.touch()


def test_a_job_that_nobody_rang_for_is_found_by_polling(worker, messenger):
    worker("--poll", "1s..2s")
    wait_until_idle(messenger)
    job_id = silently(lambda: enqueue("webhooks", {"n": 1}))
    wait_until(lambda: state(job_id) == "DONE")


def test_a_redis_that_is_away_leaves_polling_and_comes_back(worker, redis_server, redis_url, settings):
    settings.JOBQUEUE = {"DOORBELL": redis_url}
    RedisBell.at.cache_clear()
    messenger = Messenger(redis_url)
    group = worker("--poll", "1s..2s", JOBQUEUE_TEST_DOORBELL=redis_url)
    rare = worker(*RARELY, "other", JOBQUEUE_TEST_DOORBELL=redis_url)
    wait_until(lambda: len(messenger.sessions()) == 2, what="both workers")
    redis_server.stop()
    try:
        wait_until(lambda: "cannot be heard" in group.text() and "cannot be heard" in rare.text())
        runs = enqueue("webhooks", {"n": 1})
        wait_until(lambda: state(runs) == "DONE", what="a job found by polling")
    finally:
        redis_server.start()
    wait_until(lambda: len(messenger.sessions()) == 2, what="both workers again")
    RedisBell.at.cache_clear()
    job_id = tasks.add.using(queue_name="other").enqueue(1, 2).id
    runs_at_once(job_id)
    assert "can be heard again" in rare.text()
    assert group.text().count("cannot be heard") == 1


def test_a_redis_that_hangs_holds_up_one_enqueue_for_a_moment_and_the_next_not_at_all(
    redis_server, redis_url, settings
):
    settings.JOBQUEUE = {"DOORBELL": redis_url}
    RedisBell.at.cache_clear()
    doorbell._rung.clear()
    redis_server.pause()
    try:
        begun = time.monotonic()
        enqueue("first", 1)
        waited = time.monotonic() - begun
        for n in range(20):
            enqueue(f"later {n}", 1)
        rest = time.monotonic() - begun - waited
    finally:
        redis_server.resume()
    assert waited < 3
    assert rest < 3
