"""The schedules of django-celery-beat and django-q2 go on as schedules of jobqueue, with the same next ticks."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import schedules
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Schedule
from jobqueue.schedules import importing
from jobqueue.schedules.declaring import declare
from jobqueue.schedules.importing import Unmapped, carry_out, plan
from tests.app import tasks
from tests.marks import finding
from tests.schedules import foreign
from tests.schedules.foreign import CHANGED, periodic, queued
from tests.schedules.helpers import USING, begin

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("foreign_tables", "own_registry"),
]
ADD = "tests.app.tasks.add"


def bring(source, **mapping):
    """Import; what became of each row, by name."""
    return {one.name: one for one in carry_out(plan(source, mapping, using=USING), by="ann", using=USING)}


def in_days(number):
    """An instant at a full second."""
    return read_now(USING).replace(microsecond=0) + timedelta(days=number)


def ticks(name, count=3):
    return [tick.astimezone(UTC) for tick in schedules.preview(name, count, using=USING)]


def test_a_crontab_keeps_its_expression_and_its_zone():
    periodic(1, "nightly", crontab="30 3 * * mon-fri Europe/London")
    assert bring("beat")["nightly"].outcome == "new"
    [found] = schedules.known(using=USING)
    assert (found.cron, found.timezone, found.source) == ("30 3 * * 1,2,3,4,5", "Europe/London", "admin")
    assert (found.task, found.args, found.kwargs, found.edited_by) == (ADD, [1, 2], {}, "ann")


def test_an_interval_of_beat_counts_from_its_last_run_or_its_last_change():
    ran = in_days(0) - timedelta(minutes=3)
    periodic(1, "ran", interval=(10, "minutes"), last_run_at=ran)
    periodic(2, "new", interval=(2, "days"))
    bring("beat")
    assert ticks("ran", 2) == [ran + timedelta(minutes=10), ran + timedelta(minutes=20)]
    assert all((tick - CHANGED) % timedelta(days=2) == timedelta() for tick in ticks("new"))


def test_a_clocked_task_ticks_once_and_one_that_is_past_is_skipped():
    later = in_days(3)
    periodic(1, "later", clocked=later, one_off=True)
    periodic(2, "past", clocked=in_days(-3), one_off=True)
    found = bring("beat")
    assert ticks("later") == [later]
    assert found["past"].outcome == "skipped"
    assert found["past"].why.startswith("its only tick was at")


def test_a_task_of_beat_that_expires_at_this_instant_has_expired(monkeypatch):
    now = in_days(0)
    monkeypatch.setattr(importing, "read_now", lambda using: now)
    periodic(1, "expired", interval=(1, "hours"), expires=now)
    periodic(2, "expires", interval=(1, "hours"), expires=now + timedelta(seconds=1))
    found = bring("beat")
    assert found["expired"].why == f"it expired at {now:%Y-%m-%d %H:%M} UTC"
    assert not found["expires"].why.startswith("it expired")


def test_a_task_that_runs_once_ends_after_its_next_tick():
    periodic(1, "once", crontab="0 3 * * * UTC", one_off=True)
    periodic(2, "ran", crontab="0 3 * * * UTC", one_off=True, total_run_count=1)
    assert bring("beat")["ran"].why == "it was to run once, and has run"
    assert len(ticks("once")) == 1


@finding("S-C6")
def test_a_disabled_task_that_runs_once_is_skipped_because_its_end_would_pass_meanwhile():
    periodic(1, "off", crontab="0 3 * * * UTC", one_off=True, enabled=False)
    found = bring("beat")["off"]
    assert found.outcome == "skipped"
    assert found.why.startswith("it is disabled and is to run 1 times")
    assert not Schedule.objects.exists()


def test_what_cannot_be_said_is_skipped_with_its_reason():
    periodic(1, "sun", solar_id=1)
    periodic(2, "both", crontab="0 3 1 * mon UTC")
    periodic(3, "fast", interval=(5, "microseconds"))
    periodic(4, "gone", interval_id=77)
    periodic(5, "text", interval=(1, "hours"), args="1, 2")
    periodic(6, "expired", interval=(1, "hours"), expires=in_days(-1))
    periodic(7, "strange", interval=(1, "hours"), task="celery.backend_cleanup")
    periodic(8, "arguments", interval=(1, "hours"), args="[1, 2, 3, 4]")
    found = bring("beat")
    assert {one.outcome for one in found.values()} == {"skipped"}
    assert found["sun"].why.startswith("it follows the sun")
    assert "celery runs it where both agree" in found["both"].why
    assert "the least is 1" in found["fast"].why
    assert found["gone"].why == "its interval 77 does not exist"
    assert "no JSON array" in found["text"].why
    assert found["expired"].why.startswith("it expired at")
    assert "--map" in found["strange"].why
    assert found["arguments"].why
    assert not Schedule.objects.exists()


def test_start_expiry_and_a_disabled_task_are_kept_and_options_of_messages_are_named():
    start = in_days(2)
    expires = start + timedelta(days=2)
    periodic(1, "kept", interval=(1, "hours"), start_time=start, expires=expires, queue="fast", priority=3)
    periodic(2, "off", interval=(1, "hours"), enabled=False, headers='{"a": 1}', expire_seconds=5)
    found = bring("beat")
    assert (found["kept"].lost, found["off"].lost) == (("queue", "priority"), ("expire_seconds", "headers"))
    kept, off = schedules.known(using=USING)
    assert kept.end_at - kept.start_at == timedelta(days=2, microseconds=-1)
    assert kept.next_at == kept.start_at
    assert (off.enabled, off.reason, off.next_at) == (False, "was disabled in django-celery-beat", None)


def test_no_tick_fires_at_the_instant_of_the_expiry():
    ran = in_days(0)
    periodic(1, "tick", interval=(1, "days"), last_run_at=ran, expires=ran + timedelta(days=2))
    bring("beat")
    assert ticks("tick") == [ran + timedelta(days=1)]


def test_an_interval_that_was_given_a_new_start_counts_from_there():
    start = in_days(1) + timedelta(seconds=5)
    periodic(1, "tick", interval=(1, "hours"), last_run_at=CHANGED, start_time=start)
    bring("beat")
    assert ticks("tick", 2) == [start, start + timedelta(hours=1)]


def test_an_interval_that_has_run_goes_on_from_its_last_run_although_its_start_was_later():
    ran = in_days(0)
    start = ran + timedelta(minutes=10)
    periodic(1, "tick", interval=(2, "days"), last_run_at=ran, start_time=start, total_run_count=7)
    bring("beat")
    assert ticks("tick", 1) == [ran + timedelta(days=2)]


def test_rows_of_a_version_without_later_columns_are_read():
    later = ("solar_id", "clocked_id", "one_off", "start_time", "expire_seconds", "headers", "priority")
    row = {**foreign.BEAT, "id": 1, "name": "old", "interval_id": 1, "last_run_at": None, "expires": None}
    tables = {"crontab": {}, "interval": {1: {"id": 1, "every": 5, "period": "minutes"}}, "clocked": {}}
    found = importing._beat_row({k: v for k, v in row.items() if k not in later}, tables, in_days(0), USING)
    assert (found.refused, found.terms["every"]) == ("", 300)


def test_a_name_that_the_code_declares_is_left_alone_before_a_worker_has_seen_it():
    declare("tick", tasks.add, (1, 2), None, {"every": 60}, "code")
    periodic(1, "tick", interval=(1, "hours"))
    assert bring("beat")["tick"].outcome == "exists"
    assert not Schedule.objects.exists()


def test_a_name_that_exists_is_left_alone():
    before = begin("tick").digest
    periodic(1, "tick", interval=(1, "hours"))
    assert bring("beat")["tick"].outcome == "exists"
    assert Schedule.objects.get().digest == before


def test_a_task_can_have_another_path_here():
    periodic(1, "moved", interval=(1, "hours"), task="shop.sum")
    assert bring("beat", **{"shop.sum": ADD})["moved"].task == ADD
    with pytest.raises(InvalidValue, match="no task of a schedule of beat"):
        plan("beat", {"shop.other": ADD}, using=USING)
    with pytest.raises(InvalidValue, match="no task is called"):
        plan("beat", {"shop.sum": "shop.none"}, using=USING)


@pytest.mark.parametrize(
    ("words", "cron"),
    [
        ("* * * * *", "* * * * *"),
        ("*/15 */2 * * *", "*/15 */2 * * *"),
        ("0,30 8-17/3 * * *", "0,30 8,11,14,17 * * *"),
        ("0 0 * jan,mar sun", "0 0 * 1,3 0"),
        ("0 0 * * fri-mon", "0 0 * * 0,1,5,6"),
        ("0 0 1-31 * 7", "0 0 * * 0"),
        ("0 0 */10 * 0-6", "0 0 */10 * *"),
    ],
)
def test_a_crontab_says_in_cron_what_it_says_in_celery(words, cron):
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    assert importing.cron_of(dict(zip(names, words.split(), strict=True))) == cron


@pytest.mark.parametrize("minute", ["60", "x", "5/15", "*/0", "1-", ""])
def test_a_crontab_that_celery_would_not_read_is_refused(minute):
    with pytest.raises(Unmapped, match="its minute"):
        importing.cron_of(
            {"minute": minute, "hour": "*", "day_of_month": "*", "month_of_year": "*", "day_of_week": "*"}
        )


NEXT = datetime(2040, 1, 15, 8, 30, tzinfo=UTC)
SEOUL, LONDON = "Asia/Seoul", "Europe/London"


@pytest.mark.parametrize(
    ("kind", "values", "zone", "second", "third"),
    [
        ("I", {"minutes": 7}, LONDON, "2040-01-15T08:37", "2040-01-15T08:44"),
        ("H", {}, LONDON, "2040-01-15T09:30", "2040-01-15T10:30"),
        ("D", {}, SEOUL, "2040-01-16T08:30", "2040-01-17T08:30"),
        ("W", {}, LONDON, "2040-01-22T08:30", "2040-01-29T08:30"),
        ("BW", {}, SEOUL, "2040-01-29T08:30", "2040-02-12T08:30"),
        ("M", {}, LONDON, "2040-02-15T08:30", "2040-03-15T08:30"),
        ("BM", {}, LONDON, "2040-03-15T08:30", "2040-05-15T07:30"),
        ("Q", {}, LONDON, "2040-04-15T07:30", "2040-07-15T07:30"),
        ("Y", {}, LONDON, "2041-01-15T08:30", "2042-01-15T08:30"),
        ("C", {"cron": "30 8 15 * *"}, LONDON, "2040-02-15T08:30", "2040-03-15T08:30"),
    ],
)
def test_each_type_of_django_q2_has_the_ticks_that_django_q2_gives_it(settings, kind, values, zone, second, third):
    settings.TIME_ZONE = zone
    queued(1, "tick", kind, next_run=NEXT, **values)
    assert bring("django-q2")["tick"].lost == ()
    assert [f"{tick:%Y-%m-%dT%H:%M}" for tick in ticks("tick")] == ["2040-01-15T08:30", second, third]


def test_single_ticks_and_numbers_of_runs_end():
    queued(1, "once", "O", next_run=NEXT)
    queued(2, "past", "O", next_run=CHANGED)
    queued(3, "thrice", "D", next_run=NEXT, repeats=3)
    queued(4, "done", "D", repeats=0)
    found = bring("django-q2")
    assert ticks("once") == [NEXT]
    assert found["past"].why.startswith("its only tick was")
    assert len(ticks("thrice", 5)) == 3
    assert not Schedule.objects.get(name="done").enabled


def test_what_django_q2_says_and_a_schedule_cannot_is_named(settings):
    settings.TIME_ZONE = LONDON
    queued(1, "hook", "H", hook="a.b", cluster="c", kwargs="q_options={'timeout': 3}")
    queued(2, "seconds", "M", next_run=NEXT.replace(second=42))
    queued(3, "summer", "BW", next_run=NEXT)
    queued(4, "last", "M", next_run=NEXT.replace(day=31))
    queued(5, "wrong", "H", args="1,, 2")
    queued(6, "six", "C", cron="* * * * * 5")
    queued(7, "step", "C", cron="0 3 */2 * 1")
    queued(8, "many", "H", repeats=10_000_000)
    queued(9, "set", "H", kwargs="{[]: 1}")
    found = bring("django-q2")
    assert found["hook"].lost == ("hook", "cluster", "q_options")
    assert found["seconds"].lost == ("42 seconds after the minute",)
    assert found["summer"].lost == ("the time of day when the clocks change",)
    assert found["last"].why.startswith("its day of the month, 31")
    assert "cannot be read" in found["wrong"].why
    assert "five fields" in found["six"].why
    assert "names days of the month and days of the week" in found["step"].why
    assert found["many"].why == "it is to run 10000000 times; at most 1000 are counted."
    assert "cannot be read" in found["set"].why


def test_names_that_are_missing_or_not_unique_get_the_number_of_the_row():
    for number, name in enumerate([None, "same", "same"], 1):
        queued(number, name, "H", args=None, kwargs="{'a': 1, 'b': 2}")
    assert [*bring("django-q2")] == ["django-q2 #1", "same #2", "same #3"]
    assert {one.outcome for one in bring("django-q2").values()} == {"exists"}
