"""jobqueue.testing.fire() and ticks(): schedules in the tests of a project."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import schedule
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Job
from jobqueue.testing import drain, fire, ticks
from tests.app import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_fire_adds_the_job_of_a_tick_that_drain_then_runs():
    schedule(every=60, name="tick")(tasks.tell_tick)
    fire("tick", at=NOON)
    drain()
    assert Job.objects.get().result == NOON.isoformat()


def test_fire_without_an_instant_takes_the_present_one():
    schedule(every=60, name="tick", jitter_seconds=60)(tasks.tell_tick)
    number = fire("tick")
    job = Job.objects.get(pk=number)
    assert abs(datetime.fromisoformat(job.options["tick"]) - datetime.now(UTC)) < timedelta(minutes=5)
    assert job.run_at >= job.created_at


def test_ticks_are_those_of_the_expression():
    schedule(cron="0 3 * * *", timezone="UTC", name="nightly")(tasks.tell_tick)
    assert ticks("nightly", NOON, NOON + timedelta(days=2)) == [NOON + timedelta(hours=15), NOON + timedelta(hours=39)]


def test_schedules_of_the_settings_are_found_too(settings):
    settings.JOBQUEUE = {"SCHEDULES": {"hourly": {"TASK": "tests.app.tasks.tell_tick", "EVERY": "1h"}}}
    assert len(ticks("hourly", NOON, NOON + timedelta(hours=5))) == 5


def test_an_unknown_name_is_refused():
    schedule(every=60, name="tick")(tasks.tell_tick)
    with pytest.raises(InvalidValue, match="no schedule is called 'tock'"):
        fire("tock")
