"""A schedule that is due and does not fire: alarm, overview, explain, doctor, command and admin list say so."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.urls import reverse

from jobqueue.alarms import firing
from jobqueue.explain import explain_backlog
from jobqueue.models import Schedule
from jobqueue.schedules import disable, known
from jobqueue.testing import travel
from tests.alarms.helpers import look_again
from tests.marks import finding
from tests.schedules.helpers import begin, fire, minutes

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


@pytest.fixture
def late():
    """A schedule whose tick has been due for two minutes, and one that is in time."""
    with travel(to=begin(every=60).next_at + minutes(2)) as clock:
        begin(name="hourly", every=3600)
        yield clock


def listed():
    """What jobs schedules says."""
    out = StringIO()
    call_command("jobs", "schedules", stdout=out)
    return out.getvalue()


def late_codes():
    """The findings of explain_backlog() about schedules."""
    return [one for one in explain_backlog() if one.evidence.get("kind") == "schedules"]


@finding("O-M3")
def test_a_schedule_that_is_late_is_marked_until_it_fires(late):
    assert {one.name: one.late for one in known()} == {"hourly": False, "tick": True}
    assert "late: no worker fires it" in listed()
    fire()
    assert not any(one.late for one in known())
    assert "late" not in listed()


def test_a_schedule_whose_tick_is_put_off_is_late_all_the_same(late):
    Schedule.objects.filter(name="tick").update(look_at=Schedule.objects.get(name="tick").next_at + minutes(2.2))
    assert {one.name: one.late for one in known()} == {"hourly": False, "tick": True}
    assert len(late_codes()) == 1


def test_a_schedule_that_does_not_fire_on_purpose_is_not_late(late):
    disable("tick", reason="x")
    assert not any(one.late for one in known())
    assert late_codes() == []


@finding("O-M3")
def test_an_alarm_counts_the_schedules_that_are_late(late, settings):
    settings.JOBQUEUE = {"ALARMS": {"WORKERS": {"late_schedules": 1}}}
    look_again()
    look_again()
    assert [(one.queue, one.name, one.value) for one in firing()] == [("", "late_schedules", 1.0)]
    assert "workers: late_schedules" in firing()[0].text
    fire()
    look_again()
    look_again()
    assert firing() == []


@finding("O-M3")
def test_explain_says_which_schedules_no_worker_fires_and_what_to_do(late):
    (one,) = late_codes()
    assert (one.code, one.evidence["schedules"], one.evidence["late"]) == ("monitor_dead", ["tick"], 1)
    assert "no worker fires them: 1 (tick)" in one.text
    assert "--no-scheduler" in one.next_step
    fire()
    assert late_codes() == []


@finding("O-M3")
def test_the_overview_and_the_list_of_the_admin_say_it(late, admin_client):
    page = admin_client.get(reverse("admin:app_list", args=["jobqueue"])).content.decode()
    assert "1 schedule is due and does not fire: tick" in page
    rows = admin_client.get(reverse("admin:jobqueue_schedule_changelist")).content.decode()
    assert rows.count("late: no worker fires it") == 1
    late.forward(timedelta(seconds=5).total_seconds())
