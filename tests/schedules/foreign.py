"""The tables of django-celery-beat and django-q2, as their migrations make them, without the packages."""

from contextlib import contextmanager
from datetime import UTC, datetime

from django.db import connection, models

_WORD, _TEXT, _NUMBER = models.CharField(max_length=255), models.TextField(), models.IntegerField()
_FLAG, _INSTANT = models.BooleanField(), models.DateTimeField()

TABLES = {
    "django_celery_beat_crontabschedule": {
        "id": _NUMBER, "minute": _WORD, "hour": _WORD, "day_of_month": _WORD, "month_of_year": _WORD,
        "day_of_week": _WORD, "timezone": _WORD,
    },
    "django_celery_beat_intervalschedule": {"id": _NUMBER, "every": _NUMBER, "period": _WORD},
    "django_celery_beat_clockedschedule": {"id": _NUMBER, "clocked_time": _INSTANT},
    "django_celery_beat_periodictask": {
        "id": _NUMBER, "name": _WORD, "task": _WORD, "interval_id": _NUMBER, "crontab_id": _NUMBER,
        "solar_id": _NUMBER, "clocked_id": _NUMBER, "args": _TEXT, "kwargs": _TEXT, "queue": _WORD, "exchange": _WORD,
        "routing_key": _WORD, "headers": _TEXT, "priority": _NUMBER, "expires": _INSTANT, "expire_seconds": _NUMBER,
        "one_off": _FLAG, "start_time": _INSTANT, "enabled": _FLAG, "last_run_at": _INSTANT,
        "total_run_count": _NUMBER, "date_changed": _INSTANT, "description": _TEXT,
    },
    "django_q_schedule": {
        "id": _NUMBER, "name": _WORD, "func": _WORD, "hook": _WORD, "args": _TEXT, "kwargs": _TEXT,
        "schedule_type": _WORD, "minutes": _NUMBER, "repeats": _NUMBER, "next_run": _INSTANT, "cron": _WORD,
        "task": _WORD, "cluster": _WORD, "intended_date_kwarg": _WORD,
    },
}  # fmt: skip
CHANGED = datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)
BEAT = {"args": "[1, 2]", "kwargs": "{}", "headers": "{}", "one_off": False, "enabled": True, "total_run_count": 0}
BEAT |= {"task": "tests.app.tasks.add", "date_changed": CHANGED, "description": ""}
QUEUE = {"func": "tests.app.tasks.add", "args": "1, 2", "repeats": -1, "next_run": CHANGED}


@contextmanager
def tables():
    """The tables, empty, until the end. Outside a transaction: on MySQL a change of tables ends it."""
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        for name, columns in TABLES.items():
            kinds = ", ".join(f"{quote(column)} {kind.db_type(connection)} NULL" for column, kind in columns.items())
            cursor.execute(f"CREATE TABLE {quote(name)} ({kinds})")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for name in TABLES:
                cursor.execute(f"DROP TABLE {quote(name)}")


def add(table, **values):
    """Insert a row."""
    quote, kinds = connection.ops.quote_name, TABLES[table]
    shown = [kinds[name].get_db_prep_value(value, connection) for name, value in values.items()]
    columns, marks = ", ".join(map(quote, values)), ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {quote(table)} ({columns}) VALUES ({marks})", shown)


def periodic(number, name, *, crontab=None, interval=None, clocked=None, **values):
    """A periodic task of django-celery-beat, with its crontab of five words and a zone, or (every, period)."""
    kinds = {"crontab": crontab, "interval": interval, "clocked": clocked}
    if crontab is not None:
        names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone")
        add("django_celery_beat_crontabschedule", id=number, **dict(zip(names, crontab.split(), strict=True)))
    if interval is not None:
        add("django_celery_beat_intervalschedule", id=number, every=interval[0], period=interval[1])
    if clocked is not None:
        add("django_celery_beat_clockedschedule", id=number, clocked_time=clocked)
    links = {f"{kind}_id": number for kind, given in kinds.items() if given is not None}
    add("django_celery_beat_periodictask", id=number, name=name, **{**BEAT, **links, **values})


def queued(number, name, schedule_type, **values):
    """A schedule of django-q2."""
    add("django_q_schedule", id=number, name=name, schedule_type=schedule_type, **{**QUEUE, **values})
