"""manage.py jobs alarms: what fires, and exit status 1 while something does."""

import pytest

from jobqueue.db.clock import UtcNowPlus
from jobqueue.doctor import examine
from jobqueue.maintenance import worker_rows
from jobqueue.models import JobAlarm, Worker
from tests.alarms.helpers import look_again
from tests.cli.helpers import printed, read_json
from tests.factories import make_jobs
from tests.marks import finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def fires(settings):
    """An alarm that fires."""
    settings.JOBQUEUE = {"ALARMS": {"mail": {"ready": 3}, "WORKERS": {"silent": 1}}}
    make_jobs(5, "mail")
    look_again()
    look_again()


@finding("O-M1")
def test_nothing_fires(settings):
    assert printed("alarms") == "JOBQUEUE['ALARMS'] has no thresholds: nothing is checked\nno alarm fires\n"
    settings.JOBQUEUE = {"ALARMS": {"mail": {"ready": 3}}}
    assert printed("alarms", status=1).startswith("the alarms were never checked: workers")
    look_again()
    assert printed("alarms") == "no alarm fires\n"
    assert read_json("alarms")["alarms"] == []


def test_what_fires_is_a_line_with_its_runbook_and_status_1(fires):
    head, line = printed("alarms", status=1).splitlines()
    assert head.split()[:4] == ["queue", "alarm", "value", "threshold"]
    assert line.split()[:4] == ["mail", "ready", "5", "3"]
    assert line.endswith("docs/runbook/queue-backs-up.md")
    assert printed("alarms", "-v", "0", status=1) == ""


def test_json_has_the_attributes_of_firing(fires):
    found = read_json("alarms", status=1)
    assert found["last_look_seconds"] < 60
    (one,) = found["alarms"]
    assert (one["queue"], one["name"], one["value"], one["threshold"], one["incident"]) == ("mail", "ready", 5, 3, 1)
    assert set(one) == {"queue", "name", "value", "threshold", "about", "since", "incident", "text", "runbook"}


def test_it_says_if_nobody_looks_any_more(fires):
    JobAlarm.objects.update(looked_at=UtcNowPlus(-3600))
    first, *_ = printed("alarms", status=1).splitlines()
    assert first.startswith("last checked 1h")
    assert first.endswith("ago: no worker without --no-reaper seems to be running")


@finding("O-M1")
def test_nobody_looks_and_nothing_fires_is_no_good_answer(settings):
    settings.JOBQUEUE = {"ALARMS": {"mail": {"ready": 3}}}
    look_again()
    assert printed("alarms") == "no alarm fires\n"
    JobAlarm.objects.update(looked_at=UtcNowPlus(-3600))
    assert printed("alarms", status=1).endswith("whether any alarm fires is unknown\n")
    assert read_json("alarms", status=1)["alarms"] == []
    (finding,) = [one for one in examine() if one.id == "alarms_stale"]
    assert "have not been checked" in finding.text


@finding("O-M16")
def test_a_line_names_the_workers_that_it_is_about(settings):
    settings.JOBQUEUE = {"ALARMS": {"WORKERS": {"silent": 1}}, "WORKER_SILENT_SECONDS": 30}
    worker_rows.register(
        "web-7:4711:child-1", supervisor_pid=1, boot_id="b", queues="*", concurrency=1, using="default"
    )
    Worker.objects.update(heartbeat_at=UtcNowPlus(-60), host="web-7")
    look_again()
    look_again()
    assert "web-7:4711:child-1" in printed("alarms", status=1)
    (one,) = read_json("alarms", status=1)["alarms"]
    assert one["about"] == ["web-7:4711:child-1"]
    assert "workers: silent (web-7:4711:child-1), value 1" in one["text"]
    assert any("web-7:4711:child-1" in found.text for found in examine() if found.id == "alarm_fires")
