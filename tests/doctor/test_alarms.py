"""The doctor has a finding for each alarm that fires, and so its exit status tells of alarms."""

import pytest

from jobqueue.doctor import Level, work
from tests.alarms.helpers import look_again
from tests.cli.helpers import printed
from tests.doctor.helpers import add_worker, found, ids
from tests.factories import make_jobs

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def worker(db):
    """One that runs."""
    return add_worker()


def fire(settings, **thresholds):
    """Let an alarm begin for each of these figures of the queue mail."""
    settings.JOBQUEUE = {"ALARMS": {"mail": thresholds}}
    make_jobs(5, "mail")
    look_again()
    look_again()


def test_an_alarm_that_fires_is_a_warning_with_its_runbook(settings):
    fire(settings, ready=3)
    (one,) = found()
    assert (one.level, one.id) == (Level.WARNING, "alarm_fires")
    assert "queue mail: ready is 5, and its threshold is 3." in one.text
    assert one.fix == "See docs/runbook/queue-backs-up.md."
    assert (one.evidence["queue"], one.evidence["name"], one.evidence["incident"]) == ("mail", "ready", 1)
    assert "alarm_fires" in printed("doctor", status=1)


def test_when_the_alarm_is_over_the_doctor_finds_nothing(settings):
    settings.JOBQUEUE = {"ALARMS": {"mail": {"ready": 3}}}
    look_again()
    assert ids() == []
    assert "alarm_fires" not in printed("doctor")


def test_many_alarms_are_counted(settings, monkeypatch):
    monkeypatch.setattr(work, "ALARMS_SHOWN", 1)
    fire(settings, ready=3, oldest_age_seconds=0.000001)
    one, other = found()
    assert one.evidence["queue"] == "mail"
    assert (other.text, other.evidence) == ("More alarms fire: 1.", {"more": 1})
