"""A look begins and ends alarms, and writes them down."""

from datetime import timedelta

import pytest

from jobqueue import alarms
from jobqueue.alarms import alarm_of, looking
from jobqueue.alarms.looking import SILENT_SECONDS, Looked, end_unwatched, last_look_seconds, look
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.maintenance import cleaner, worker_rows
from jobqueue.models import Job, JobAlarm, JobStat, Schedule, Worker
from jobqueue.signals import alarm_changed
from tests.alarms.helpers import look_again
from tests.factories import make_jobs, now
from tests.marks import finding
from tests.schedules.helpers import begin

pytestmark = pytest.mark.django_db


def watch(settings, **thresholds):
    settings.JOBQUEUE = {"ALARMS": thresholds}


def firing():
    return [(alarm.queue, alarm.name, alarm.value) for alarm in alarms.firing()]


def remove(count, queue="mail"):
    Job.objects.filter(pk__in=list(Job.objects.filter(queue=queue).values_list("pk", flat=True)[:count])).delete()


def test_an_alarm_begins_with_the_second_look_and_ends_with_the_second_below_80_percent(settings):
    watch(settings, mail={"ready": 10})
    make_jobs(9, "mail")
    assert look_again() == Looked()
    assert not JobAlarm.objects.filter(queue="mail").exists()
    make_jobs(1, "mail")
    assert look_again() == Looked()
    assert alarms.firing() == []
    assert look_again() == Looked(begun=1)
    (alarm,) = alarms.firing()
    assert (alarm.queue, alarm.name, alarm.value, alarm.threshold) == ("mail", "ready", 10, 10)
    assert (alarm.incident, alarm.ended_at) == (1, None)
    assert now() - alarm.since < timedelta(minutes=1)
    remove(2)
    for _ in range(3):
        assert look_again() == Looked()
    assert firing() == [("mail", "ready", 8)]
    remove(1)
    assert look_again() == Looked()
    assert look_again() == Looked(ended=1)
    assert alarms.firing() == []


def test_an_alarm_that_has_ended_keeps_its_beginning_and_fires_again_after_two_looks(settings):
    watch(settings, mail={"ready": 10})
    make_jobs(10, "mail")
    assert [look_again(), look_again()] == [Looked(), Looked(begun=1)]
    (begun,) = alarms.firing()
    remove(5)
    assert [look_again(), look_again()] == [Looked(), Looked(ended=1)]
    assert JobAlarm.objects.get(queue="mail").since == begun.since
    make_jobs(5, "mail")
    assert look_again() == Looked()
    assert alarms.firing() == []


def test_a_queue_that_swings_around_its_threshold_has_one_incident(settings):
    watch(settings, mail={"ready": 10})
    make_jobs(10, "mail")
    total = Looked()
    for _ in range(12):
        for change in (lambda: remove(2), lambda: make_jobs(2, "mail")):
            found = look_again()
            total = Looked(total.begun + found.begun, total.ended + found.ended)
            change()
    assert total in (Looked(), Looked(begun=1))
    look_again()
    assert look_again(), alarms.firing()[0].incident == 1


def test_a_restart_of_all_workers_begins_no_second_incident(settings):
    watch(settings, mail={"ready": 2})
    make_jobs(3, "mail")
    look_again()
    look_again()
    # An hour without any worker.
    assert look_again(3600) == Looked()
    assert look_again() == Looked()
    (alarm,) = alarms.firing()
    assert alarm.incident == 1
    assert JobAlarm.objects.filter(queue="mail").count() == 1


def test_a_second_incident_has_the_next_number(settings):
    watch(settings, mail={"ready": 2})
    for number in (1, 2):
        make_jobs(3, "mail")
        look_again()
        look_again()
        assert [alarm.incident for alarm in alarms.firing()] == [number]
        remove(3)
        look_again()
        look_again()
        assert alarms.firing() == []


def test_the_star_means_the_queues_without_an_entry(settings):
    watch(settings, **{"*": {"ready": 2}, "mail": {"ready": 5}, "bulk": {}})
    for queue in ("mail", "bulk", "web"):
        make_jobs(3, queue)
    look_again()
    look_again()
    assert firing() == [("web", "ready", 3)]
    # Of a queue without rows the alarm ends, too.
    Job.objects.filter(queue="web").delete()
    look_again()
    assert look_again() == Looked(ended=1)


def test_a_minimum_of_throughput_is_for_queues_that_have_work(settings):
    watch(settings, **{"*": {"throughput_per_minute": 5}, "always": {"throughput_per_minute": 1}})
    make_jobs(1, "mail")
    look_again()
    look_again()
    assert firing() == [("always", "throughput_per_minute", 0), ("mail", "throughput_per_minute", 0)]
    remove(1)
    look_again()
    assert len(firing()) == 2
    look_again(700)
    assert firing() == [("always", "throughput_per_minute", 0)]


def test_an_age_that_grows_in_each_look_is_an_alarm(settings):
    watch(settings, mail={"rising_age_seconds": 40})
    (first,) = make_jobs(1, "mail")
    make_jobs(1, "mail")
    for number in range(5):
        # The queue does not move: its oldest job is older each time. 40 s are over at the fourth look.
        assert alarms.firing() == []
        Job.objects.update(run_at=UtcNowPlus(-100 - 15 * number))
        look_again()
    (alarm,) = alarms.firing()
    assert alarm.name == "rising_age_seconds"
    assert alarm.value >= 40
    Job.objects.filter(pk=first).delete()
    Job.objects.update(run_at=UtcNowPlus(-1))
    look_again()
    Job.objects.all().delete()
    assert look_again() == Looked(ended=1)


def test_silent_workers_are_counted_until_they_are_long_gone(settings):
    settings.JOBQUEUE = {"ALARMS": {"WORKERS": {"silent": 1}}, "WORKER_SILENT_SECONDS": 30}
    about = {"supervisor_pid": 1, "boot_id": "b", "queues": "*", "concurrency": 1, "using": "default"}
    for name in ("lives", "silent"):
        worker_rows.register(name, **about)
    look_again()
    look_again()
    assert alarms.firing() == []
    Worker.objects.filter(name="silent").update(heartbeat_at=UtcNowPlus(-60))
    look_again()
    look_again()
    assert firing() == [("", "silent", 1)]
    # Another worker marks it as silent: it still is.
    worker_rows.retire_silent(30, using="default")
    look_again()
    look_again()
    assert firing() == [("", "silent", 1)]
    Worker.objects.filter(name="silent").update(stopped_at=UtcNowPlus(-SILENT_SECONDS - 1))
    look_again()
    assert look_again() == Looked(ended=1)


@finding("O-M16")
class TestWhomAnAlarmIsAbout:
    @pytest.fixture(autouse=True)
    def watched(self, settings, own_registry):
        thresholds = {"silent": 1, "stalled": 1, "exhausted": 1, "late_schedules": 1}
        settings.JOBQUEUE = {"ALARMS": {"WORKERS": thresholds}, "WORKER_SILENT_SECONDS": 30}
        about = {"supervisor_pid": 1, "boot_id": "b", "queues": "*", "concurrency": 1, "using": "default"}
        for name in ("web-7:1:child-1", "batch"):
            worker_rows.register(name, **about)
        Worker.objects.update(host="web-7")

    def about(self):
        look_again()
        look_again()
        return {alarm.name: alarm.about for alarm in alarms.firing()}

    def test_a_silent_worker_is_named_with_its_host_also_when_it_is_marked_and_when_the_alarm_is_over(self):
        Worker.objects.update(heartbeat_at=UtcNowPlus(-60))
        assert sorted(self.about()["silent"]) == ["batch on web-7", "web-7:1:child-1"]
        worker_rows.retire_silent(30, using="default")
        assert sorted(self.about()["silent"]) == ["batch on web-7", "web-7:1:child-1"]
        Worker.objects.all().delete()
        assert self.about() == {}
        assert "batch on web-7" in alarm_of(JobAlarm.objects.get(name="silent")).text

    def test_workers_with_troubles_are_named(self):
        Worker.objects.filter(name="batch").update(troubles={"stalled": {"queue": "q"}, "memory": {"free": 1}})
        assert self.about() == {"stalled": ("batch on web-7",), "exhausted": ("batch on web-7",)}

    @pytest.mark.usefixtures("own_registry")
    def test_schedules_are_named(self):
        begin(every=60)
        Schedule.objects.update(next_at=UtcNowPlus(-3600), look_at=UtcNowPlus(-3600))
        assert self.about() == {"late_schedules": ("tick",)}

    def test_what_another_release_has_written_breaks_nothing(self):
        Worker.objects.update(heartbeat_at=UtcNowPlus(-60))
        self.about()
        JobAlarm.objects.filter(name="silent").update(about={"a": 1})
        assert alarms.firing()[0].about == ()


def test_an_alarm_without_a_threshold_ends_after_ten_minutes(settings):
    watch(settings, mail={"ready": 2})
    make_jobs(3, "mail")
    look_again()
    look_again()
    watch(settings, other={"ready": 2})
    look_again()
    # A worker with other settings, as in a deployment, changes nothing.
    assert len(alarms.firing()) == 1
    assert look_again(looking.UNWATCHED_SECONDS) == Looked(ended=1)


def test_without_any_threshold_what_fires_ends_too(settings):
    watch(settings, mail={"ready": 2})
    make_jobs(3, "mail")
    look_again()
    look_again()
    watch(settings)
    assert end_unwatched(load(), using="default") == Looked()
    JobAlarm.objects.update(looked_at=UtcNowPlus(-looking.UNWATCHED_SECONDS - 1))
    assert end_unwatched(load(), using="default") == Looked(ended=1)


def test_a_look_that_began_earlier_writes_nothing(settings):
    watch(settings, mail={"ready": 2})
    make_jobs(3, "mail")
    look_again()
    JobAlarm.objects.update(looked_at=UtcNowPlus(60))
    assert look(load(), using="default") == Looked()
    assert JobAlarm.objects.get(queue="mail").looks == 1


def test_the_signal_carries_the_alarm(settings):
    heard = []

    def hear(alarm, using, **rest):
        heard.append((alarm.queue, alarm.ended_at is None, using))

    alarm_changed.connect(hear)
    watch(settings, mail={"ready": 2})
    make_jobs(3, "mail")
    look_again()
    look_again()
    remove(3)
    look_again()
    look_again()
    assert heard == [("mail", True, "default"), ("mail", False, "default")]


def test_rows_that_are_quiet_are_deleted_and_those_that_fire_stay(settings):
    watch(settings, mail={"ready": 2}, web={"ready": 2})
    make_jobs(3, "mail")
    make_jobs(3, "web")
    look_again()
    look_again()
    remove(3, "web")
    look_again()
    look_again()
    assert cleaner.CLEANERS["alarms"].run_once(load(), using="default").total() == 0
    JobAlarm.objects.exclude(quiet_at=None).update(quiet_at=UtcNowPlus(-91 * 86_400))
    assert cleaner.CLEANERS["alarms"].run_once(load(), using="default").total() == 1
    assert firing() == [("mail", "ready", 3)]


def test_the_last_look_is_known(settings):
    assert last_look_seconds(using="default") is None
    watch(settings, mail={"ready": 2})
    for _ in range(2):
        look_again()
        assert 0 <= last_look_seconds(using="default") < 60
    assert alarms.firing() == []


def test_a_look_has_as_many_statements_for_many_queues_as_for_few(settings, django_assert_max_num_queries):
    watch(settings, **{"*": {"ready": 9000, "oldest_age_seconds": 3600}, "WORKERS": {"silent": 1}})
    make_jobs(1, "first")
    look_again()
    for number in range(15):
        make_jobs(1, f"queue {number}")
    with django_assert_max_num_queries(25):
        look(load(), using="default")


def test_workers_with_troubles_are_counted_while_they_run_and_have_them(settings):
    settings.JOBQUEUE = {"ALARMS": {"WORKERS": {"stalled": 1, "exhausted": 2}}}
    short, stalled = {"memory": {"free": 1, "limit": 2, "of": "host"}}, {"stalled": {"queue": "q"}}
    for name, troubles in (
        ("a", short),
        ("b", stalled),
        ("c", short | stalled),
        ("d", None),
        ("e", [1]),
        ("gone", short),
    ):
        worker_rows.register(name, supervisor_pid=1, boot_id="b", queues="*", concurrency=1, using="default")
        worker_rows.note(name, troubles=troubles, using="default")
    worker_rows.retire("gone", "stopped", using="default")
    look_again()
    look_again()
    assert firing() == [("", "exhausted", 2), ("", "stalled", 2)]
    for name in "bc":
        worker_rows.note(name, troubles=None, using="default")
    look_again()
    look_again()
    assert firing() == []


@finding("O-M2")
def test_a_share_of_errors_of_a_few_runs_is_no_alarm(settings):
    settings.JOBQUEUE = {"ALARMS": {"q": {"error_rate": 0.2}}}
    now = read_now("default").replace(second=0, microsecond=0)
    row = JobStat.objects.create(id=b"a" * 16, queue="q", span=JobStat.Span.QUEUE_PROCESS, begins_at=now, retried=9)
    (figure,) = looking.read(load(), [], using="default")
    assert figure.value == 0.0
    JobStat.objects.filter(pk=row.pk).update(done=1)
    (figure,) = looking.read(load(), [], using="default")
    assert figure.value == pytest.approx(0.9)
