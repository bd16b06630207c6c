"""The clock of the database's server is set forward and back by an hour: no tick is doubled, and the missed ones follow
the policy of their schedule."""

from __future__ import annotations

import time

import pytest
from django.db import connections

from jobqueue.db.clock import read_now
from jobqueue.models import Job, Schedule, ScheduleTick
from tests.marks import committed
from tests.proofs.running import unended, wait_for
from tests.proofs.schedules.test_firing import OPTIONS, answers, code, fired
from tests.servers import control
from tests.servers.faketime import MovedClock
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server; its clock is that of the workers"),
]
HOUR, EVERY = 3600, 10


@pytest.fixture
def clock(full):
    """The clock of the server, which this test moves."""
    if not full:
        pytest.skip("make prove ISSUE=schedules: other tests use the server at the same time")
    with MovedClock(control.load()[VENDOR]) as found:
        wait_for(answers, 60, "the server")
        yield found
        connections.close_all()


def policies():
    """A schedule of each policy, each ten seconds."""
    return code(**{
        missed: {"EVERY": EVERY, "MISSED": missed, "MISSED_LIMIT": 1000} for missed in ("all", "latest", "skip")
    })  # fmt: skip


def seconds_now():
    return read_now("default").timestamp()


def test_the_servers_clock_is_moved_by_an_hour_and_back(run_worker, clock, figure):
    """2 workers, 3 schedules each 10 s; the clock of the server goes an hour ahead, and back."""
    names = ("all", "latest", "skip")
    crowd = [run_worker(*OPTIONS, **policies()) for _ in range(2)]
    wait_for(lambda: all(fired(name) for name in names), 90, lambda: unended(crowd))
    before = seconds_now()
    clock.move(HOUR)
    wait_for(lambda: seconds_now() - before > HOUR - 60, 30, "the clock ahead")
    ahead = seconds_now()
    wait_for(lambda: all(fired(name)[-1] > ahead + EVERY for name in names), 180, lambda: unended(crowd))
    for name in names:
        ticks = fired(name)
        expected = round((ticks[-1] - ticks[0]) / EVERY) + 1
        missing = expected - len(ticks)
        assert missing == (0 if name == "all" else sum(missed(name)))
        assert name == "all" or missing > HOUR / EVERY - 12
        figure(f"missed={name}: ticks expected / fired / missed", f"{expected} / {len(ticks)} / {missing}")
    clock.move(0)
    wait_for(lambda: seconds_now() < ahead, 30, "the clock back")
    # What has fired does not fire again when its time comes again; what was missed may.
    until = time.monotonic() + 3 * EVERY
    wait_for(lambda: time.monotonic() > until, 60, lambda: unended(crowd))
    for name in names:
        added = jobs_of(name)
        assert len(added) == len({*added}) == len({*fired(name)})
        assert Job.objects.filter(pk__in=added).count() == len(added)
    assert Job.objects.count() == sum(len(jobs_of(name)) for name in names)
    figure("doubled after the clock was set back", 0)


def missed(name):
    """How many ticks each row of missed ones stands for."""
    return ScheduleTick.objects.filter(schedule_id__in=ids(name), outcome="missed").values_list("ticks", flat=True)


def ids(name):

    return Schedule.objects.filter(name=name).values("pk")


def jobs_of(name):
    """The jobs of the ticks of a schedule."""
    rows = ScheduleTick.objects.filter(schedule_id__in=ids(name), outcome="fired")
    return list(rows.values_list("job_id", flat=True))
