"""Real workers look for alarms and tell of them: once in all of them, also when they are restarted."""

import json
import signal

import pytest
from django.core.management import call_command

from jobqueue import alarms
from jobqueue.models import Job, JobAlarm
from tests.alarms.helpers import look_again
from tests.alarms.receivers import http_receiver, smtp_sink
from tests.factories import make_jobs
from tests.marks import committed
from tests.patience import wait_until

pytestmark = committed
QUEUE = "nobody-serves-this"


@pytest.fixture
def told():
    """The environment of workers, and who gets their mails and webhooks."""
    with smtp_sink() as sink, http_receiver() as receiver:
        setting = {QUEUE: {"ready": 3}, "NOTIFY": [{"MAIL": ["ops@example.com"]}, {"WEBHOOK": receiver.url}]}
        environment = {"JOBQUEUE_TEST_ALARMS": json.dumps(setting), "JOBQUEUE_TEST_SMTP_PORT": str(sink.port)}
        yield environment, setting, sink, receiver


def stop(groups):
    for group in groups:
        group.signal(signal.SIGTERM)
    assert [group.wait() for group in groups] == [0] * len(groups)


def states(receiver):
    return [body["state"] for _, _, body in receiver.requests]


def nothing_to_tell():
    return not JobAlarm.objects.exclude(send_at=None).exists()


def test_two_workers_tell_of_an_incident_once_and_a_restart_tells_nothing(worker, told, settings):
    environment, _, sink, receiver = told
    make_jobs(5, QUEUE)
    groups = [worker("--queues=other", **environment) for _ in range(2)]
    wait_until(lambda: receiver.requests and sink.mails, what="a mail and a webhook")
    wait_until(nothing_to_tell)
    stop(groups)
    groups = [worker("--queues=other", **environment) for _ in range(2)]
    looked_at = JobAlarm.objects.get(queue=QUEUE).looked_at
    wait_until(lambda: JobAlarm.objects.get(queue=QUEUE).looked_at > looked_at, what="a look after the restart")
    assert (states(receiver), len(sink.mails)) == (["firing"], 1)
    Job.objects.all().delete()
    wait_until(lambda: len(receiver.requests) > 1 and len(sink.mails) > 1, what="the end")
    wait_until(nothing_to_tell)
    stop(groups)
    assert states(receiver) == ["firing", "ended"]
    assert [mail["Subject"].split()[-4:-2] for mail in sink.mails] == [["alarm", "fires:"], ["alarm", "over:"]]
    assert JobAlarm.objects.get(queue=QUEUE).incident == 1


def test_reap_leases_looks_too_and_tells_before_it_ends(told, settings, capsys):
    _, setting, _, receiver = told
    settings.JOBQUEUE = {"ALARMS": {**setting, "NOTIFY": [{"WEBHOOK": receiver.url}]}}
    make_jobs(5, QUEUE)
    look_again()
    JobAlarm.objects.update(looked_at=JobAlarm.objects.get(queue=QUEUE).looked_at)
    call_command("reap_leases")
    assert [alarm.queue for alarm in alarms.firing()] == [QUEUE]
    assert states(receiver) == ["firing"]
    capsys.readouterr()
