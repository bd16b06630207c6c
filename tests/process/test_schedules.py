"""Workers fire schedules: each tick once, whoever dies and whatever queues they serve."""

import json
import signal

import pytest

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, Schedule, ScheduleTick, ScheduleVersion, Worker
from jobqueue.schedules import known
from tests.marks import committed, finding
from tests.patience import wait_until

pytestmark = committed


def code(**schedules):
    """The environment of a worker whose settings have these schedules of tests.app.tasks.tell_tick."""
    entries = {name: {"TASK": "tests.app.tasks.tell_tick", **entry} for name, entry in schedules.items()}
    return {"JOBQUEUE_TEST_SCHEDULES": json.dumps(entries)}


def fired(name="beat"):
    """The instants of the ticks of a schedule that have fired, in seconds, in their order."""
    rows = ScheduleTick.objects.filter(schedule_id__in=Schedule.objects.filter(name=name).values("pk"), outcome="fired")
    return [tick.timestamp() for tick in rows.order_by("tick_at").values_list("tick_at", flat=True)]


def told():
    """The ticks of all jobs, in seconds."""
    return sorted(options["tick"] for options in Job.objects.values_list("options", flat=True))


def stop(*groups):
    for group in groups:
        group.signal(signal.SIGTERM)
    assert [group.wait() for group in groups] == [0] * len(groups)


def test_each_tick_fires_once_with_three_workers_of_which_one_is_killed(worker):
    environment = code(beat={"EVERY": 1, "MISSED": "all"})
    groups = [worker("--queues=nothing", **environment) for _ in range(3)]
    wait_until(lambda: len(fired()) >= 3, what="three ticks")
    groups[0].signal_all(signal.SIGKILL)
    groups[0].end()
    before = len(fired())
    wait_until(lambda: len(fired()) >= before + 3, what="three ticks more")
    stop(*groups[1:])
    ticks = fired()
    assert ticks == [ticks[0] + n for n in range(len(ticks))]
    assert len(told()) == len(set(told())) == len(ticks)


def test_the_job_of_a_tick_runs_and_can_ask_for_it(worker):
    group = worker(**code(beat={"EVERY": 1}))
    wait_until(lambda: Job.objects.filter(status=Job.Status.DONE).exists(), what="a job that is DONE")
    stop(group)
    job = Job.objects.filter(status=Job.Status.DONE).first()
    assert job.result == job.options["tick"]


def test_a_worker_without_a_scheduler_announces_and_fires_nothing(worker):
    silent = worker("--no-scheduler", **code(beat={"EVERY": 1}))
    wait_until(lambda: known(), what="the announcement")
    overdue = Schedule.objects.filter(next_at__lt=UtcNowPlus(-3))
    wait_until(overdue.exists, what="a tick that is due for three seconds")
    assert not fired()
    firing = worker("--queues=nothing")
    wait_until(lambda: len(fired()) >= 2, what="ticks that the other worker fires")
    stop(firing)
    count = Job.objects.count()
    stop(silent)
    assert Job.objects.count() == count


def test_in_a_rolling_deploy_the_new_version_is_in_force_and_stays(worker):
    old = worker(**code(beat={"EVERY": "1h"}, removed={"EVERY": 1}))
    wait_until(lambda: len(known()) == 2, what="the announcement of the old version")
    new = worker(**code(beat={"EVERY": "2h"}, added={"EVERY": 1}))
    wait_until(lambda: {one.name for one in known()} == {"added", "beat", "removed"}, what="that of the new one")
    wait_until(lambda: fired("added"), what="a tick of what was added")
    before = len(fired("removed"))
    # As long as old workers run, what they have goes on.
    wait_until(lambda: len(fired("removed")) > before, what="a tick of what only the old version has")
    stop(old)
    assert {one.name: one.every_seconds for one in known()} == {"added": 1, "beat": 7200, "removed": 1}
    stop(new)


@finding("R-F10")
@pytest.mark.parametrize("model", [Worker, ScheduleVersion], ids=["workers", "schedules"])
def test_rows_that_are_deleted_below_a_worker_that_runs_are_written_again(worker, model):
    """As by a restored back-up, or a failover to a server that was behind."""
    group = worker(**code(beat={"EVERY": 1}))
    wait_until(lambda: fired() and Worker.objects.exists(), what="the first tick")
    if model is ScheduleVersion:
        ScheduleTick.objects.all().delete()
        Schedule.objects.all().delete()
    model.objects.all().delete()
    group.prints("it writes them again")
    wait_until(lambda: Worker.objects.filter(stopped_at=None).exists() and fired(), what="the rows, and a tick")
    before = len(fired())
    wait_until(lambda: len(fired()) >= before + 2, what="more ticks")
    stop(group)
