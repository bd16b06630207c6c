"""A worker that announces and fires a schedule and dies, or loses its session, at any moment: no tick fires twice."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from jobqueue.db.clock import UtcNow, read_now
from jobqueue.models import Job, Schedule, ScheduleTick, ScheduleVersion
from jobqueue.schedules import versions
from jobqueue.schedules.declaring import declare, withdraw
from jobqueue.schedules.firing import fire_due
from tests.app import tasks
from tests.faults.cuts import before_first, each_cut
from tests.marks import committed
from tests.settings import FULL

#: `make prove` walks each moment
STRIDE = 1 if FULL else 19
MISSED = 3

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


def begin():
    """A schedule of each overlap policy, of which some ticks are due; when it ends, so that there are no more."""
    now = read_now("default")
    for model in (Job, Schedule, ScheduleTick, ScheduleVersion):
        model.objects.all().delete()
    for name in ("allow", "skip", "queue"):
        withdraw(name)
        declare(name, tasks.add, (1, 2), None, {"every": "1h", "missed": "all", "overlap": name, "end_at": now}, "code")
    versions.announce("default")
    Schedule.objects.update(decided_until=now - timedelta(hours=MISSED), look_at=UtcNow())
    return now


def work(end_at):
    """What a worker does: it announces, as after a deploy, and fires."""
    withdraw("allow")
    declare("allow", tasks.add, (3, 4), None, {"every": "1h", "missed": "all", "end_at": end_at}, "code")
    versions.announce("default")
    while fire_due("default").more:
        pass


def whole(where):
    """Each tick that has fired has its job, and each job its tick."""
    fired = {*ScheduleTick.objects.filter(outcome="fired").values_list("job_id", flat=True)}
    assert {*Job.objects.values_list("pk", flat=True)} == fired, where


@each_cut
def test_wherever_it_is_cut_each_tick_fires_once(cut, figure):
    """A worker cut before and after each statement of announce, adopt and fire; then another one goes on."""
    number, cuts = before_first(STRIDE), 0
    while True:
        number += STRIDE
        again = partial(work, begin())
        stopped = cut(number, again)
        whole(f"cut at moment {number}")
        again()
        whole(f"after moment {number}")
        counts = {
            name: ScheduleTick.objects.filter(schedule_id=Schedule.objects.get(name=name).pk).count()
            for name in ("allow", "skip", "queue")
        }
        assert counts == dict.fromkeys(counts, MISSED), f"after moment {number}"
        assert ScheduleTick.objects.filter(outcome="fired").count() == MISSED + 2, f"after moment {number}"
        if not stopped:
            break
        cuts += 1
    assert number > 35
    figure(f"moments at which it was {cut.__name__}", cuts)
