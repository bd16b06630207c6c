"""Each alarm arrives once per incident by SMTP and by webhook, and none flaps around its threshold."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import django
import pytest

from jobqueue.alarms import delivery
from jobqueue.alarms.delivery import tell_due
from jobqueue.conf import load
from jobqueue.conf.alarms import FIGURES
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.db.dialect import ErrorKind
from jobqueue.maintenance.worker_rows import SILENT
from jobqueue.models import Job, JobAlarm, JobStat, LockStat, Worker
from jobqueue.models.job import HELD_GATE
from jobqueue.transitions import claim, fail_many
from tests.alarms.helpers import look_again
from tests.alarms.receivers import http_receiver, smtp_sink
from tests.factories import make_jobs, now
from tests.marks import committed
from tests.patience import patient
from tests.process.conftest import start  # noqa: F401
from tests.process.harness import SHORT
from tests.proofs.running import wait_for
from tests.stats.helpers import add

pytestmark = [committed, pytest.mark.timeout(3600)]
MANY = 20
OF_WORKERS = ("silent", "stalled", "exhausted", "refused_connections")
#: how bad a figure is: clearly good, at its threshold, and between the bounds where nothing begins and ends
GOOD, BAD, BETWEEN = 0.5, 1.0, 0.9


@dataclass(frozen=True)
class Figure:
    """A figure with a threshold; put(share) makes it `share` of that."""

    threshold: float
    put: object


def clear(queue):
    Job.objects.filter(queue=queue).delete()


def ready(share):
    clear("ready")
    make_jobs(int(share * MANY), "ready")


def scheduled(share):
    clear("scheduled")
    make_jobs(int(share * MANY), "scheduled", run_at=UtcNowPlus(3600))


def held(share):
    clear("held")
    make_jobs(int(share * MANY), "held", gate=HELD_GATE)


def running(share):
    clear("running")
    make_jobs(int(share * MANY), "running")
    claim("running", MANY, worker="w", lease_seconds=36_000)


def failed(share):
    clear("failed")
    make_jobs(int(share * MANY), "failed", max_attempts=1)
    fail_many(claim("failed", MANY, worker="w"), error="boom")


def oldest(share):
    clear("oldest_age_seconds")
    make_jobs(1, "oldest_age_seconds", run_at=UtcNowPlus(-3600 * (share + 0.02)))


def rising(share):
    """Of the oldest job, which waits longer and longer; nothing is between the bounds for long."""
    clear("rising_age_seconds")
    if share >= BETWEEN:
        make_jobs(1, "rising_age_seconds", run_at=UtcNowPlus(-10))


def ends(queue, **counts):
    JobStat.objects.filter(queue=queue).delete()
    add(JobStat.Span.MINUTE, read_now("default").replace(second=0, microsecond=0), queue, **counts)


def dead(share):
    ends("dead_per_hour", dead=int(share * MANY))


def errors(share):
    ends("error_rate", retried=int(share * 50), done=100 - int(share * 50))


def throughput(share):
    """A minimum: it is good above its threshold."""
    per_minute = {GOOD: 2.0, BETWEEN: 1.1, BAD: 0.5}[share] * MANY
    ends("throughput_per_minute", done=int(6 * per_minute))


def workers(name, count, **columns):
    Worker.objects.filter(name__startswith=name).delete()
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "concurrency": 2, "version": "1"}
    for number in range(count):
        Worker.objects.create(name=f"{name}{number}", queues="none", heartbeat_seconds=36_000, **plain, **columns)


def silent(share):
    workers("silent", int(share * MANY), stopped_at=now(), stop_reason=SILENT)


def stalled(share):
    workers("stalled", int(share * MANY), troubles={"stalled": {"queue": "q", "job_id": 1, "seconds": 90}})


def exhausted(share):
    troubles = {"memory": {"free": 1, "limit": 2**30, "of": "host"}}
    workers("exhausted", int(share * MANY), troubles=troubles)


def refused(share):
    LockStat.objects.all().delete()
    key = f"claim {ErrorKind.NO_CONNECTION}"
    LockStat.objects.create(id=b"r" * 16, kind="transaction", lock_key=key, contended=int(share * MANY))


FIGURE = {
    "ready": Figure(MANY, ready),
    "scheduled": Figure(MANY, scheduled),
    "held": Figure(MANY, held),
    "running": Figure(MANY, running),
    "failed": Figure(MANY, failed),
    "oldest_age_seconds": Figure(3600, oldest),
    "throughput_per_minute": Figure(MANY, throughput),
    "dead_per_hour": Figure(MANY, dead),
    "error_rate": Figure(0.5, errors),
    "rising_age_seconds": Figure(25, rising),
    "silent": Figure(MANY, silent),
    "stalled": Figure(MANY, stalled),
    "exhausted": Figure(MANY, exhausted),
    "refused_connections": Figure(MANY, refused),
}


def everything(share):
    for figure in FIGURE.values():
        figure.put(share)


def setting(receiver):
    queues = {name: {name: FIGURE[name].threshold} for name in FIGURES}
    notify = [{"MAIL": ["ops@example.com"]}, {"WEBHOOK": receiver.url}]
    return {**queues, "WORKERS": {name: int(FIGURE[name].threshold) for name in OF_WORKERS}, "NOTIFY": notify}


def looked_at():
    return JobAlarm.objects.filter(name="look").values_list("looked_at", flat=True).first()


def told(sink, receiver):
    """(name, state) of each webhook, and how many mails there are."""
    return Counter((body["name"], body["state"]) for _, _, body in list(receiver.requests)), len(sink.mails)


@pytest.fixture
def served(settings):
    """A mail server and a receiver of webhooks, and the settings of this process that name them."""
    with smtp_sink() as sink, http_receiver() as receiver:
        settings.JOBQUEUE = {"ALARMS": setting(receiver)}
        smtp = "django.core.mail.backends.smtp.EmailBackend"
        if django.VERSION >= (6, 1):
            settings.MAILERS = {"default": {"BACKEND": smtp, "OPTIONS": {"host": "127.0.0.1", "port": sink.port}}}
        else:
            settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = smtp, "127.0.0.1", sink.port
        delivery._running.clear()
        yield sink, receiver


def test_each_alarm_arrives_once_per_incident(start, served, full, figure):  # noqa: F811
    """Two incidents of every alarm, each with a time in which figures waver: what SMTP and a webhook got."""
    sink, receiver = served
    incidents, wavers = (2, 8) if full else (1, 3)
    environment = {"JOBQUEUE_TEST_ALARMS": json.dumps(setting(receiver)), "JOBQUEUE_TEST_SMTP_PORT": str(sink.port)}
    assert set(FIGURE) == {*FIGURES, *OF_WORKERS}
    everything(GOOD)
    if full:
        for _ in range(2):
            start("runworker", *SHORT, "--queues", "other", **environment)

    def looks(count):
        """Look so often: workers do so every 15 seconds."""
        for _ in range(count):
            if full:
                before = looked_at()
                wait_for(lambda last=before: looked_at() != last, 120, "a look of a worker")
            else:
                look_again()
        if not full:
            tell_due(load(), using="default")
        wait_for(lambda: not JobAlarm.objects.exclude(send_at=None).exists(), patient(60), "all notices")

    begun = time.monotonic()
    looks(3)
    assert told(sink, receiver) == (Counter(), 0)
    for incident in range(1, incidents + 1):
        everything(BAD)
        # The age of the oldest job has to grow for a while.
        looks(5)
        for number in range(wavers):
            everything_but_rising(BETWEEN if number % 2 == 0 else BAD)
            looks(1)
        webhooks, mails = told(sink, receiver)
        assert {state for _, state in webhooks} == ({"firing"} if incident == 1 else {"firing", "ended"})
        assert {name: webhooks[name, "firing"] for name in FIGURE} == dict.fromkeys(FIGURE, incident)
        everything(GOOD)
        looks(3)
        webhooks, mails = told(sink, receiver)
        assert webhooks == Counter({(name, state): incident for name in FIGURE for state in ("firing", "ended")})
        assert mails == 2 * incident * len(FIGURE)
    seconds = timedelta(seconds=round(time.monotonic() - begun))
    figure("alarms", len(FIGURE))
    figure("incidents of each", incidents)
    figure("mails / webhooks of each incident", "2 (begins, is over) / 2")
    figure("mails / webhooks in all", f"{mails} / {sum(webhooks.values())}")
    figure("mails and webhooks while figures wavered", 0)
    figure("time", str(seconds))


def everything_but_rising(share):
    for name, each in FIGURE.items():
        if name != "rising_age_seconds":
            each.put(share)
