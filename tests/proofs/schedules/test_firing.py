"""Each tick of a schedule fires once, whatever happens to workers, their clocks and the server."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from django.db import Error, connections

from jobqueue.db.clock import read_now
from jobqueue.models import Job, Schedule, ScheduleTick
from tests.marks import committed
from tests.proofs.flow.crowd import Crowd
from tests.proofs.flow.test_pause import restart_server
from tests.proofs.running import unended, wait_for

pytestmark = [committed, pytest.mark.timeout(1800)]
OPTIONS = ("--processes", "1", "--concurrency", "1", "--queues", "nothing")


def code(**schedules):
    """The environment of workers whose settings have these schedules."""
    entries = {name: {"TASK": "tests.app.tasks.tell_tick", **entry} for name, entry in schedules.items()}
    return {"JOBQUEUE_TEST_SCHEDULES": json.dumps(entries)}


def fired(name):
    """The seconds of the ticks that have fired."""
    numbers = Schedule.objects.filter(name=name).values("pk")
    ticks = ScheduleTick.objects.filter(schedule_id__in=numbers, outcome="fired").order_by("tick_at")
    return [round(tick.timestamp(), 3) for tick in ticks.values_list("tick_at", flat=True)]


def told():
    """The ticks that the jobs carry, in seconds, with how much later than its tick each was added."""
    rows = Job.objects.order_by("pk").values_list("options", "created_at")
    found = [(datetime.fromisoformat(options["tick"]), created) for options, created in rows]
    return [(round(tick.timestamp(), 3), (created - tick).total_seconds()) for tick, created in found]


def begun(workers):
    """Wait until the schedule has its first tick behind it; the first undecided second."""
    wait_for(lambda: fired("beat"), 60, lambda: unended(workers))
    return fired("beat")[0]


def answers():
    try:
        return read_now("default") is not None
    except Error:
        connections.close_all()
        return False


def test_each_tick_fires_once_while_workers_are_killed_and_the_server_restarts(run_worker, full, figure):
    """8 workers, a schedule each second; SIGKILL to any process each second, and a restart of the server."""
    workers, kills = (8, 90) if full else (3, 6)
    environment = code(beat={"EVERY": 1, "MISSED": "all", "MISSED_LIMIT": 1000})
    crowd = Crowd(lambda *options: run_worker(*options, **environment), workers, *OPTIONS)
    first = begun(crowd.workers)
    restarted = False
    for number in range(kills):
        crowd.kill_one()
        if number == kills // 2:
            restarted = restart_server()
            wait_for(answers, 60, "the server")
        time.sleep(1)
    last = int(read_now("default").timestamp())
    crowd.replace()
    wait_for(lambda: fired("beat")[-1] >= last, 120, lambda: unended(crowd.workers))
    ticks = [tick for tick in fired("beat") if tick <= last]
    jobs = [tick for tick, _ in told() if tick <= last]
    expected = last - int(first) + 1
    doubled = len(jobs) - len(set(jobs))
    assert (len(ticks), len(jobs), doubled) == (expected, expected, 0)
    figure("workers, kills", f"{workers}, {crowd.kills}")
    figure("server restarted", restarted)
    counts = f"{expected} / {len(ticks)} / {doubled} / {expected - len(ticks)}"
    figure("ticks expected / fired / doubled / missed", counts)


def test_a_tick_fires_within_two_seconds(run_worker, full, figure):
    """From the tick to the row of its job, by the clock of the server, with workers that serve another queue."""
    workers, seconds = (4, 120) if full else (2, 10)
    environment = code(beat={"EVERY": 1, "MISSED": "all"})
    crowd = [run_worker(*OPTIONS, **environment) for _ in range(workers)]
    begun(crowd)
    wait_for(lambda: len(fired("beat")) >= seconds, 60 + 2 * seconds, lambda: unended(crowd))
    late = sorted(lateness for _, lateness in told()[1:])
    if full:
        assert late[-1] < 2
    figure("ticks", len(late))
    figure("seconds after the tick, median / longest", f"{late[len(late) // 2]:.2f} / {late[-1]:.2f}")


@pytest.mark.parametrize("offset", [-3600, 3600], ids=["an-hour-slow", "an-hour-fast"])
def test_the_clocks_of_workers_do_not_matter(run_worker, full, figure, offset):
    """One worker whose host's clock is an hour wrong beside one whose clock is right: each tick once, in time."""
    seconds = 30 if full else 5
    environment = code(beat={"EVERY": 1, "MISSED": "all"})
    wrong = run_worker(*OPTIONS, JOBQUEUE_TEST_CLOCK_OFFSET=offset, **environment)
    first = begun([wrong])
    assert abs(first - datetime.now(UTC).timestamp()) < 600
    right = run_worker(*OPTIONS, **environment)
    wait_for(lambda: len(fired("beat")) >= seconds, 60 + 2 * seconds, lambda: unended([wrong, right]))
    ticks, jobs = fired("beat"), [tick for tick, _ in told()]
    assert len(jobs) == len(set(jobs))
    assert ticks == [first + n for n in range(len(ticks))]
    figure("clock of one worker", f"{offset:+d} s")
    figure("ticks fired / doubled", f"{len(ticks)} / {len(jobs) - len(set(jobs))}")


def test_a_schedule_is_added_changed_and_removed_by_a_rolling_deploy(run_worker, full, figure):
    """Workers of two versions side by side, started and stopped in turns: no tick of either is doubled."""
    rounds = 4 if full else 1
    old = code(beat={"EVERY": 2, "MISSED": "all"}, removed={"EVERY": 1})
    new = code(beat={"EVERY": 1, "MISSED": "all"}, added={"EVERY": 1})
    crowd = [run_worker(*OPTIONS, **old) for _ in range(2)]
    begun(crowd)
    for number in range(rounds):
        version = new if number % 2 == 0 else old
        for place, worker in enumerate(crowd):
            crowd[place] = run_worker(*OPTIONS, **version)
            wait_for(lambda: worker.stop() == 0, 60, lambda: unended(crowd))  # noqa: B023
        seen = len(fired("beat"))
        wait_for(lambda: len(fired("beat")) > seen + 2, 60, lambda: unended(crowd))  # noqa: B023
        wait_for(lambda: fired("removed") and fired("added"), 60, lambda: unended(crowd))
    # A tick that fires between the two counts would be in one of them.
    assert [worker.stop() for worker in crowd] == [0] * len(crowd)
    jobs = Job.objects.count()
    ticks = ScheduleTick.objects.filter(outcome="fired").count()
    assert jobs == ticks
    figure("deploys", rounds)
    figure("ticks fired / jobs", f"{ticks} / {jobs}")
