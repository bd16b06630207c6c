"""python -m tests.proofs.schedules.foreign_packages: schedules of django-celery-beat and django-q2, made by themselves.

Runs where those are installed, in the environment of foreign_requirements.txt. Reads {"database": …, "zone": …, "do":
…} from its input. "fill" makes their tables with their migrations and rows with their models, and prints the next
ticks of each row as they calculate them; "drop" takes their migrations back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from unittest.mock import patch

import django
from django.apps import apps
from django.conf import settings
from django.core.management import call_command

#: one more than are compared, because one may pass meanwhile
COUNT = 13
APPS = ("django_celery_beat", "django_q")
CRONTABS = [
    ("* * * * *", "UTC"),
    ("*/15 */2 * * *", "Asia/Seoul"),
    ("30 3 * * mon-fri", "Europe/London"),
    ("0,30 8-17/3 * * *", "America/New_York"),
    ("0 12 1 * *", "Asia/Seoul"),
    ("0 0 * jan,mar sun", "UTC"),
    ("15 6 * * fri-mon", "Africa/Casablanca"),
    ("45 23 */10 * *", "Australia/Lord_Howe"),
    ("0 9 1-31 * 0", "Europe/London"),
]
INTERVALS = [(7, "minutes"), (90, "minutes"), (5, "hours"), (2, "days"), (1000, "seconds")]
TYPES = {
    "I": {"minutes": 7},
    "H": {},
    "D": {},
    "W": {},
    "M": {},
    "BM": {},
    "Q": {},
    "Y": {},
    "O": {},
    "C": {"cron": "30 8 * * 1-5"},
}
TASK = "tests.app.tasks.add"


def ticks_of_beat(now: datetime) -> dict[str, list[datetime]]:
    """Fill the tables of django-celery-beat; the next ticks by name."""
    from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

    fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    common = {"task": TASK, "args": "[1, 2]"}
    for number, (words, zone) in enumerate(CRONTABS):
        crontab = CrontabSchedule.objects.create(**dict(zip(fields, words.split(), strict=True)), timezone=zone)
        PeriodicTask.objects.create(name=f"crontab {number}", crontab=crontab, **common)
    for number, (every, period) in enumerate(INTERVALS):
        interval = IntervalSchedule.objects.create(every=every, period=period)
        PeriodicTask.objects.create(name=f"interval {number}", interval=interval, last_run_at=now, **common)
    clocked = ClockedSchedule.objects.create(clocked_time=now + timedelta(days=3))
    PeriodicTask.objects.create(name="clocked", clocked=clocked, one_off=True, **common)
    return {one.name: _beat_ticks(one, now) for one in PeriodicTask.objects.all()}


def _beat_ticks(one, now: datetime) -> list[datetime]:
    from django_celery_beat.schedulers import ModelEntry

    if one.clocked is not None:
        return [one.clocked.clocked_time]
    schedule = ModelEntry(one).schedule

    def after(last: datetime) -> datetime:
        schedule.nowfun = lambda: last
        return last + schedule.remaining_estimate(last)

    return list(islice(_chain(after, now), COUNT))


def _chain(after: Callable[[datetime], datetime], tick: datetime) -> Iterator[datetime]:
    while True:
        tick = after(tick)
        yield tick


def ticks_of_queue(now: datetime) -> dict[str, list[datetime]]:
    """Fill the table of django-q2; the next ticks by name."""
    from django_q.models import Schedule

    begin = (now.replace(day=15) + timedelta(days=31)).replace(day=15, hour=13, minute=30, second=0, microsecond=0)
    found = {}
    for kind, values in TYPES.items():
        one = Schedule.objects.create(
            name=f"type {kind}", func=TASK, args="1, 2", schedule_type=kind, next_run=begin, **values
        )
        found[one.name] = _queue_ticks(one)
    return found


def _queue_ticks(one) -> list[datetime]:
    if one.schedule_type == "O":
        return [one.next_run]

    def after(tick: datetime) -> datetime:
        from django.utils.timezone import localtime

        # An expression counts from now, the other types from the tick before.
        with patch("django_q.models.localtime", lambda instant=None: localtime(instant or tick)):
            return one.calculate_next_run(tick)

    return [one.next_run, *islice(_chain(after, one.next_run), COUNT - 1)]


def drop() -> None:
    """Take the migrations of both packages back."""
    for app in APPS:
        # Older columns are too short for some of the rows.
        for model in apps.get_app_config(app).get_models():
            model.objects.all().delete()
        call_command("migrate", app, "zero", verbosity=0)


def main() -> None:
    """Do what the input says."""
    asked = json.load(sys.stdin)
    settings.configure(
        Q_CLUSTER={"timeout": 60, "retry": 120},
        INSTALLED_APPS=APPS,
        DATABASES={"default": asked["database"]},
        TIME_ZONE=asked["zone"],
        USE_TZ=True,
    )
    django.setup()
    if asked["do"] == "drop":
        drop()
        return
    call_command("migrate", verbosity=0)
    now = datetime.now(UTC).replace(microsecond=0)
    found = {"beat": ticks_of_beat(now), "django-q2": ticks_of_queue(now)}
    texts = {
        source: {name: [f"{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" for tick in ticks] for name, ticks in rows.items()}
        for source, rows in found.items()
    }
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
