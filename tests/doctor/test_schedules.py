"""What the doctor says of schedules."""

from datetime import timedelta

import pytest

from jobqueue.db.clock import UtcNowPlus
from jobqueue.doctor import Level, work
from jobqueue.models import Schedule
from jobqueue.schedules import disable
from jobqueue.schedules.declaring import declare, withdraw
from tests.app import tasks
from tests.doctor.helpers import add_worker, ids, the
from tests.schedules.helpers import begin, fire, minutes

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def worker(db, own_registry):
    """One that runs."""
    return add_worker()


def test_a_schedule_that_a_worker_announces_and_fires_is_no_finding():
    begin()
    assert ids() == []


def test_a_schedule_of_a_task_that_nobody_knows_is_an_error_unless_it_is_disabled():
    begin()
    Schedule.objects.update(task="app.tasks.gone")
    one = the("schedule_unknown_task")
    assert (one.level, one.evidence) == (Level.ERROR, {"schedules": {"tick": "app.tasks.gone"}, "number": 1})
    disable("tick", reason="r")
    assert ids() == []


def test_many_of_them_are_counted(monkeypatch):
    monkeypatch.setattr(work, "SHOWN", 1)
    for number in range(3):
        declare(f"tick{number}", tasks.add, (1, 2), None, {"every": 60}, "code")
    begin()
    Schedule.objects.update(task="app.tasks.gone")
    one = the("schedule_unknown_task")
    assert one.evidence["number"] == Schedule.objects.count() > 1
    assert "others" in one.text


def test_a_schedule_that_no_worker_announces_any_more_is_a_warning():
    begin()
    Schedule.objects.update(announced_at=UtcNowPlus(-300))
    one = the("schedule_unannounced")
    assert (one.level, one.evidence) == (Level.WARNING, {"schedules": ["tick"], "number": 1})
    Schedule.objects.update(source=Schedule.Source.ADMIN)
    assert ids() == []


def test_a_schedule_that_only_this_process_declares_is_a_warning():
    declare("new", tasks.add, (1, 2), None, {"every": 60}, "code")
    assert the("schedule_unannounced").evidence["schedules"] == ["new"]
    withdraw("new")
    assert ids() == []


def test_a_schedule_that_is_due_and_was_not_fired_is_an_error():
    begin()
    Schedule.objects.update(look_at=UtcNowPlus(-300))
    one = the("schedule_late")
    assert (one.level, one.evidence["number"]) == (Level.ERROR, 1)
    assert "the first one has been due for 30" in one.text


def test_ticks_that_were_missed_are_a_warning():
    row = begin(missed="skip", every=60)
    Schedule.objects.update(decided_until=row.decided_until - minutes(10), look_at=UtcNowPlus(-1))
    fire()
    one = the("schedule_missed")
    assert one.level is Level.WARNING
    assert one.evidence["schedules"]["tick"] >= 9


def test_a_schedule_of_the_settings_that_cannot_be_declared_is_the_error_of_the_system_check(settings):
    settings.JOBQUEUE = {"SCHEDULES": {"x": {"TASK": "app.tasks.gone", "EVERY": "1h"}}}
    assert ids() == ["jobqueue.E008"]


def test_a_schedule_far_ahead_is_not_late():
    begin(every=timedelta(days=1))
    assert ids() == []
