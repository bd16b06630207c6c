"""A worker that polls once a minute starts a job at once when it is notified, and polls when no wake-up is sent."""

import os
import signal
import time

import pytest
from django.db import connection
from redis import Redis

from jobqueue import enqueue
from jobqueue.conf import load
from jobqueue.models import Worker
from jobqueue.wakeup.notifiers import PAUSE_SECONDS
from tests import memories
from tests.app import tasks
from tests.factories import state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.probe import monitor_of, starts, wait_until_asleep
from tests.settings import VENDOR

pytestmark = committed
RARELY = ("--poll", "3600s..5400s", "--lease", "600s")


class Messenger:
    """How workers of this test are notified."""

    def __init__(self, value):
        self.value = value

    def sessions(self):
        """The ids of the sessions that listen."""
        if self.value != "auto":
            with Redis.from_url(self.value) as client:
                if not dict(client.pubsub_numsub("jobqueue"))[b"jobqueue"]:
                    return []
                return sorted(session["id"] for session in client.client_list(_type="pubsub"))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
            return [row[0] for row in cursor.fetchall()]


@pytest.fixture(autouse=True)
def patient_bells(monkeypatch):
    """A wake-up that is given up on a busy machine would be the last for ten seconds."""
    monkeypatch.setattr("jobqueue.wakeup.notifiers.WAIT_SECONDS", 20.0)


MESSENGERS = ["redis", "auto"] if VENDOR == "postgres" else ["redis"]


@pytest.fixture(params=MESSENGERS)
def messenger(request, settings, monkeypatch):
    value = request.getfixturevalue("redis_url") if request.param == "redis" else request.param
    settings.JOBQUEUE = {"WAKEUP": value}
    monkeypatch.setenv("JOBQUEUE_TEST_WAKEUP", value)
    memories.reset()
    return Messenger(value)


def wait_until_idle(messenger=None, children=1):
    """Workers have come up, listen, and are past the second in which one that had work looks every few ms."""
    wait_until(lambda: Worker.objects.filter(stopped_at=None).count() == children, what="the workers")
    if messenger is not None:
        wait_until(lambda: len(messenger.sessions()) == 1, what="a session that listens")
    wait_until_asleep(Worker.objects.filter(stopped_at=None).values_list("pid", flat=True))


def silently(add):
    """add(), and nobody is told."""
    settings = load()
    object.__setattr__(settings, "wakeup", "off")
    try:
        return add()
    finally:
        load.cache_clear()


def runs_at_once(job_id):
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")


@pytest.mark.parametrize("processes", [1, 3])
def test_an_idle_worker_starts_a_job_at_once(worker, messenger, processes):
    group = worker(*RARELY, "--processes", processes)
    wait_until_idle(messenger, processes)
    for n in range(3):
        runs_at_once(enqueue("webhooks", {"n": n}))
        wait_until_idle(messenger, processes)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_burst_wakes_as_many_children_as_it_needs(worker, messenger, evidence, tmp_path):
    gate = tmp_path / "gate"
    worker(*RARELY, "--processes", 4, "--concurrency", 1)
    wait_until_idle(messenger, 4)
    for _ in range(4):
        tasks.gated.enqueue(str(gate))
    wait_until(lambda: len(evidence.read("start")) == 4, what="four starts")
    gate.touch()


def test_a_ring_for_a_queue_that_is_not_served_wakes_nobody(worker, messenger):
    group = worker(*RARELY, "webhooks", "-v", 3)
    wait_until_idle(messenger)
    waits = silently(lambda: enqueue("webhooks", {"n": 1}))
    other = enqueue("other", {"n": 1})
    # It comes after that of the other queue.
    enqueue("webhooks", {"n": 2})
    runs_at_once(waits)
    group.prints("wake-up: a job was committed to webhooks")
    assert "committed to other" not in group.text()
    assert state(other) == "READY"


def test_a_session_that_was_ended_is_replaced(worker, messenger):
    worker(*RARELY)
    wait_until_idle(messenger)
    old = messenger.sessions()
    if messenger.value == "auto":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", old)
    else:
        with Redis.from_url(messenger.value) as client:
            client.client_kill_filter(_type="pubsub")
    wait_until(lambda: messenger.sessions() not in ([], old), what="another session that listens")
    runs_at_once(enqueue("webhooks", {"n": 1}))


def test_a_new_monitor_listens_again(worker, messenger):
    group = worker(*RARELY)
    wait_until_idle(messenger)
    children, old = set(Worker.objects.values_list("pid", flat=True)), messenger.sessions()
    monitor = monitor_of(group, *children)
    os.kill(monitor, signal.SIGKILL)
    group.prints("starting another")
    wait_until(lambda: len(group.members()) == 4 and monitor not in group.members())
    wait_until(lambda: len(new := messenger.sessions()) == 1 and new != old, what="another session that listens")
    runs_at_once(enqueue("webhooks", {"n": 1}))


def test_a_replaced_child_is_rung_and_pipes_do_not_pile_up(worker, messenger):
    group = worker(*RARELY)
    wait_until_idle(messenger)
    before = len(os.listdir(f"/proc/{group.pid}/fd"))
    for generation in range(2, 5):
        os.kill(Worker.objects.latest("pk").pid, signal.SIGKILL)
        wait_until(lambda g=generation: Worker.objects.filter(name__endswith=f"/1.{g}").exists(), what="a new child")
        wait_until_idle(messenger)
        runs_at_once(enqueue("webhooks", {"n": 1}))
    wait_until(lambda: len(os.listdir(f"/proc/{group.pid}/fd")) == before, what="as many open files as before")


def test_a_listener_that_hears_nothing_sends_nothing(worker, redis_url):
    group = worker(*RARELY, JOBQUEUE_TEST_WAKEUP=redis_url)
    wait_until_idle(Messenger(redis_url))
    with Redis.from_url(redis_url) as client:
        # Its sign of life comes every 30 s.
        wait_until(lambda: [int(one["idle"]) > 3 for one in client.client_list(_type="pubsub")] == [True], group.text())


def test_a_job_wakes_its_own_worker_on_every_database_without_any_messenger(worker, evidence, tmp_path):
    now, gate = tmp_path / "now", tmp_path / "gate"
    tasks.enqueues_late.enqueue(str(now), str(gate))
    worker(*RARELY, JOBQUEUE_TEST_WAKEUP="off")
    starts(evidence)
    wait_until_idle()
    now.touch()
    wait_until(lambda: evidence.read("effect"), what="the second job")
    gate.touch()


def test_a_job_whose_child_is_full_wakes_a_sibling(worker, evidence, tmp_path):
    now, gate = tmp_path / "now", tmp_path / "gate"
    # There before them: one child takes it when it comes up, the other one is idle when the second is enqueued.
    tasks.enqueues_late.enqueue(str(now), str(gate))
    worker(*RARELY, "--processes", 2, "--concurrency", 1, JOBQUEUE_TEST_WAKEUP="off")
    (first,) = starts(evidence)
    wait_until(lambda: Worker.objects.filter(stopped_at=None).count() == 2, what="both children")
    wait_until_asleep(Worker.objects.exclude(pid=int(first[1])).values_list("pid", flat=True))
    now.touch()
    (second,) = wait_until(lambda: evidence.read("effect"), what="the second job")
    assert first[1] != second[1]
    gate.touch()


def test_a_job_that_nobody_rang_for_is_found_by_polling(worker, messenger):
    worker("--poll", "3s..4s")
    wait_until_idle(messenger)
    job_id = silently(lambda: enqueue("webhooks", {"n": 1}))
    wait_until(lambda: state(job_id) == "DONE")


def test_a_redis_that_is_away_leaves_polling_and_comes_back(worker, redis_server, redis_url, settings):
    settings.JOBQUEUE = {"WAKEUP": redis_url}
    memories.reset()
    messenger = Messenger(redis_url)
    group = worker("--poll", "1s..2s", JOBQUEUE_TEST_WAKEUP=redis_url)
    rare = worker(*RARELY, "other", JOBQUEUE_TEST_WAKEUP=redis_url)
    wait_until(lambda: len(messenger.sessions()) == 2, what="both workers")
    redis_server.stop()
    try:
        wait_until(lambda: "cannot receive wake-ups" in group.text() and "cannot receive wake-ups" in rare.text())
        runs = enqueue("webhooks", {"n": 1})
        wait_until(lambda: state(runs) == "DONE", what="a job found by polling")
    finally:
        redis_server.start()
    wait_until(lambda: len(messenger.sessions()) == 2, what="both workers again")
    memories.reset()
    job_id = tasks.add.using(queue_name="other").enqueue(1, 2).id
    runs_at_once(job_id)
    rare.prints("can receive wake-ups again")
    group.prints("cannot receive wake-ups")
    assert group.text().count("cannot receive wake-ups") == 1


def test_a_redis_that_hangs_holds_up_one_enqueue_for_a_moment_and_the_next_not_at_all(
    redis_server, redis_url, settings, monkeypatch
):
    monkeypatch.undo()  # as short as it is
    settings.JOBQUEUE = {"WAKEUP": redis_url}
    memories.reset()
    tried, publish = [], Redis.publish
    monkeypatch.setattr(Redis, "publish", lambda *args: tried.append(args) or publish(*args))
    redis_server.pause()
    try:
        # It returns, though nobody has answered.
        enqueue("first", 1)
        begun = time.monotonic()
        for n in range(20):
            enqueue(f"later {n}", 1)
        rest = time.monotonic() - begun
    finally:
        redis_server.resume()
    assert 1 <= len(tried) <= 1 + rest / PAUSE_SECONDS, "it was tried again before its pause was over"
