"""A worker notices that it claims nothing although work is due."""

import logging
from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from jobqueue.explain import database, explain_queue
from jobqueue.flow import pause, set_limit
from jobqueue.maintenance import worker_rows
from jobqueue.worker.monitor import stall_watch
from jobqueue.worker.monitor.stall_watch import StallWatch
from jobqueue.worker.monitor.troubles import Troubles
from jobqueue.worker.shared.queue_choice import parse
from jobqueue.worker.shared.scoreboard import Scoreboard, Stop
from jobqueue.worker.shared.worker_options import Options
from tests.admin.helpers import LIMIT_STATEMENTS
from tests.factories import claim_one, make_job, make_jobs, now, set_columns

pytestmark = pytest.mark.django_db
LIMIT = 30.0


class Clock:
    """Stands in for the module time of the watch."""

    def __init__(self):
        self.at = 1000.0

    def monotonic(self):
        return self.at

    def passes(self, seconds):
        self.at += seconds


@pytest.fixture
def passes(monkeypatch):
    """passes(seconds): time goes on for the watch."""
    clock = Clock()
    monkeypatch.setattr(stall_watch, "time", clock)
    return clock.passes


class Watched:
    """A worker with one child that has free threads."""

    def __init__(self, *words, **more):
        self.scoreboard = Scoreboard(1, 1)
        self.slot = self.scoreboard.slots[0]
        self.slot.room = 4
        self.troubles = Troubles("default")
        options = Options(selection=parse(words), database="default", **more)
        self.watch = StallWatch(options, self.scoreboard, lambda: [(0, "w")], self.troubles)


@pytest.fixture
def watched(worker_row, passes):
    return Watched()


@pytest.fixture
def worker_row(db):
    """The row of the worker that is watched: it runs."""
    worker_rows.register("w", supervisor_pid=1, boot_id="b", queues="*", concurrency=4, using="default")


def late(queue="q", seconds=60.0, **columns):
    job_id = make_job(queue)
    set_columns(job_id, run_at=now() - timedelta(seconds=seconds), **columns)
    return job_id


def looks(watched, passes, caplog, count, seconds=LIMIT / 2):
    """What `count` looks log."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "jobqueue.worker"):
        for _ in range(count):
            watched.watch.look()
            passes(seconds)
    return [record.getMessage() for record in caplog.records]


def test_due_work_that_nobody_claims_is_told_once_with_the_likeliest_reason(watched, passes, caplog):
    job_id = late()
    assert looks(watched, passes, caplog, 3) == []
    (text,) = looks(watched, passes, caplog, 10)
    assert text.startswith(f"job {job_id} of queue q has been due for 1m 0s, and w with free threads has claimed")
    assert "(workers_busy)" in text
    assert watched.troubles.stalled["w"]["code"] == "workers_busy"
    watched.slot.claimed += 1
    (over,) = looks(watched, passes, caplog, 2)
    assert over.startswith("the jobs that nobody claimed are gone")
    assert watched.troubles.stalled == {}


def test_through_a_slow_network_all_causes_are_looked_at(watched, passes, caplog, monkeypatch):
    late()
    set_limit("q", concurrency=1)
    claim_one(worker="w")
    late()
    monkeypatch.setattr(database, "ROUND_TRIP_SECONDS", 0.0)
    monkeypatch.setattr(database, "ANSWER_SECONDS", 0.0)
    assert explain_queue("q", all_causes=True)[0].code == "slot"
    assert explain_queue("q")[0].code == "database_slow"
    assert looks(watched, passes, caplog, 10) == [], "the limit lets nothing start, as somebody has meant it"


def test_one_incident_after_another_is_told_again(watched, passes, caplog):
    late()
    assert len(looks(watched, passes, caplog, 8)) == 1
    watched.slot.claimed += 1
    texts = looks(watched, passes, caplog, 12)
    assert [text.split()[0] for text in texts] == ["the", "job"]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: setattr(one.slot, "room", 0),
        lambda one: setattr(one.scoreboard.header, "stop", Stop.DRAIN),
    ],
)
def test_a_worker_that_is_full_or_stops_is_not_meant_and_asks_nothing(watched, passes, caplog, change):
    late()
    change(watched)
    with CaptureQueriesContext(connection) as sent:
        assert looks(watched, passes, caplog, 10) == []
    assert len(sent) == 0


def test_a_worker_that_claims_asks_nothing(watched, passes, caplog):
    late()
    with CaptureQueriesContext(connection) as sent:
        for _ in range(10):
            watched.slot.claimed += 1
            assert looks(watched, passes, caplog, 1) == []
    assert len(sent) == 0


def test_an_idle_worker_without_work_costs_one_statement_for_each_look(watched, passes, caplog):
    make_jobs(3, "q")
    late("other", status=2)
    set_columns(late("delayed"), run_at=now() + timedelta(minutes=10))
    # The statements, for all queues: names, which have jobs, whether one is late, other priorities.
    for one, most in ((Watched("none,other"), 1), (watched, 4)):
        assert looks(one, passes, caplog, 4) == []
        with CaptureQueriesContext(connection) as sent:
            assert looks(one, passes, caplog, 1) == []
        assert len(sent) == most + LIMIT_STATEMENTS


def test_delayed_jobs_of_a_higher_priority_hide_nothing(watched, passes, caplog):
    for priority in (3, 2):
        set_columns(make_job("q"), priority=priority, run_at=now() + timedelta(hours=1))
    job_id = late()
    (text,) = looks(watched, passes, caplog, 8)
    assert text.startswith(f"job {job_id} ")


@pytest.mark.parametrize("seconds", [1.0, 25.0])
def test_a_job_that_is_due_since_a_moment_ago_is_none(watched, passes, caplog, seconds):
    late(seconds=seconds)
    assert looks(watched, passes, caplog, 10) == []


def test_jobs_of_queues_that_it_does_not_serve_are_none(worker_row, passes, caplog):
    late("mine")
    assert looks(Watched("other"), passes, caplog, 10) == []
    assert looks(Watched("-mine"), passes, caplog, 10) == []


def test_a_pause_is_meant(watched, passes, caplog):
    late()
    pause("q", reason="x")
    assert looks(watched, passes, caplog, 10) == []
    assert watched.troubles.stalled == {}


def test_a_paused_queue_does_not_hide_another(watched, passes, caplog):
    for number in range(5):
        late(f"a{number}")
        pause(f"a{number}", reason="x")
    late("z")
    (text,) = looks(watched, passes, caplog, 12)
    assert "of queue z " in text


@override_settings(JOBQUEUE={"WORKER_SILENT_SECONDS": 10})
def test_the_limit_is_half_of_the_time_after_which_a_worker_is_silent(watched):
    assert (watched.watch.limit_seconds, watched.watch.interval_seconds) == (5.0, 2.5)
    assert Watched(poll_high_seconds=60.0).watch.limit_seconds == 180.0
