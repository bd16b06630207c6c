"""Schedules in tests: announced as by a worker, and fired as by its monitor."""

from datetime import timedelta

from jobqueue.models import Job, Schedule, ScheduleTick, ScheduleVersion
from jobqueue.schedules import versions
from jobqueue.schedules.declaring import declare
from jobqueue.schedules.firing import fire_due
from tests.app import tasks

USING = "default"


def begin(name="tick", task=tasks.add, args=(1, 2), source="code", **given):
    """Declare a schedule and announce it as a worker does; its row."""
    declare(name, task, args, None, given or {"every": 60}, source)
    versions.announce(USING)
    return row(name)


def row(name="tick"):
    """The row of a schedule."""
    return Schedule.objects.get(name=name)


def fire():
    """One look of a monitor, repeated while there is more; how many jobs were added. Its worker is alive."""
    versions.keep_announced([*ScheduleVersion.objects.values_list("pk", flat=True)], USING)
    jobs = 0
    while True:
        done = fire_due(USING)
        jobs += done.jobs
        if not done.more:
            return jobs


def jobs():
    """The ticks of the jobs that there are, in the order of their ids, as ISO texts."""
    return [options["tick"] for options in Job.objects.order_by("pk").values_list("options", flat=True)]


def outcomes(name="tick"):
    """(outcome, ticks) of the ticks of a schedule, in their order."""
    ticks = ScheduleTick.objects.filter(schedule_id=row(name).pk).order_by("tick_at")
    return [(tick.outcome, tick.ticks) for tick in ticks]


def minutes(number):
    """As a timedelta."""
    return timedelta(minutes=number)
