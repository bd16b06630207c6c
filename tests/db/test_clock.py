"""All times are UTC by the database's clock, whatever zone server, session, settings and host have."""

import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus, compare_clocks, read_now
from jobqueue.doctor.server import clock_skew
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import ack, cancel, claim, fail, heartbeat, reap, release, snooze
from tests.factories import claim_one, expire, job, make_job, seconds_from_now
from tests.marks import finding
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db

ZONES = ["+09:00", "-08:00", "+00:00", "+05:30"]


@pytest.fixture(params=ZONES)
def session_zone(request, sql):
    """The session's zone is set to something else, as user code may do."""
    if VENDOR == "sqlite":
        pytest.skip("SQLite has no session zone")
    if VENDOR == "postgres":
        before = sql("SHOW TIME ZONE")[0][0]
        sql("SET TIME ZONE INTERVAL %s HOUR TO MINUTE", [request.param])
        yield request.param
        sql("SELECT set_config('TimeZone', %s, false)", [before])
    else:
        before = sql("SELECT @@session.time_zone")[0][0]
        sql("SET time_zone = %s", [request.param])
        yield request.param
        sql("SET time_zone = %s", [before])


def walk_through_all_verbs():
    """Every verb once; each time it writes is checked against real UTC."""
    job_id = enqueue("q", 1)
    for instant in (job(job_id).run_at, job(job_id).created_at, job(job_id).updated_at):
        assert close_to_utc_now(instant)
    lease = claim_one(lease_seconds=100)
    assert close_to_utc_now(lease.lock_until, 100)
    assert close_to_utc_now(job(job_id).locked_at)
    assert close_to_utc_now(job(job_id).lock_until, 100)
    assert close_to_utc_now(heartbeat(lease, lease_seconds=200), 200)
    assert reap().total == 0
    snooze(lease, delay_seconds=50)
    assert close_to_utc_now(job(job_id).run_at, 50)
    assert claim("q", worker="w") == []
    Job.objects.update(run_at=UtcNowPlus(-1))
    fail(claim_one(), error="x", delay_seconds=70)
    assert close_to_utc_now(job(job_id).run_at, 70)
    assert close_to_utc_now(JobAttempt.objects.get().ended_at)
    assert claim("q", worker="w") == []
    Job.objects.update(run_at=UtcNowPlus(-1))
    lease = claim_one()
    expire(lease)
    assert reap().requeued == 1
    release(claim_one())
    ack(claim_one())
    assert close_to_utc_now(job(job_id).finished_at)
    other = enqueue("q", 1)
    cancel(other)
    assert close_to_utc_now(job(other).finished_at)


def close_to_utc_now(instant, ahead=0):
    # The servers run on this host, so their clock is ours; zones differ by at least half an hour.
    assert instant.utcoffset() == timedelta(0)
    return abs((instant - datetime.now(UTC)).total_seconds() - ahead) < 30


def test_every_verb_writes_utc_in_the_sessions_usual_zone():
    walk_through_all_verbs()


def test_every_verb_writes_utc_whatever_the_sessions_zone(session_zone):
    walk_through_all_verbs()


def test_an_old_row_is_read_the_same_in_every_zone(session_zone, sql):
    instant = datetime(2031, 7, 4, 1, 2, 3, 456000, tzinfo=UTC)
    job_id = enqueue("q", 1, run_at=instant)
    assert job(job_id).run_at == instant
    if VENDOR != "postgres":
        assert sql("SELECT run_at FROM job_queue WHERE id = %s", [job_id])[0][0] == instant.replace(tzinfo=None)


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("zone", ["Asia/Seoul", "America/Los_Angeles", "UTC", "Europe/London"])
def test_every_verb_writes_utc_whatever_the_settings(settings, use_tz, zone):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    walk_through_all_verbs()


@pytest.mark.parametrize("use_tz", [True, False])
def test_run_at_is_kept_whatever_the_settings(settings, use_tz):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Seoul"
    instant = datetime(2031, 7, 4, 1, 2, 3, 456000, tzinfo=UTC)
    job_id = enqueue("q", 1, run_at=instant)
    assert job(job_id).run_at == instant
    assert list(Job.objects.filter(run_at=instant).values_list("run_at", flat=True)) == [instant]


def test_the_servers_session_is_really_elsewhere(sql):
    if VENDOR not in ("mysql", "mariadb"):
        pytest.skip("only MySQL and MariaDB mix the session's zone into their clock")
    assert abs(sql("SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())")[0][0]) > 20


@pytest.mark.parametrize("hours", [1, -1])
def test_a_wrong_host_clock_changes_nothing(monkeypatch, hours):
    make_job()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    monkeypatch.setattr("django.utils.timezone.now", lambda: datetime.now(UTC) + timedelta(hours=hours))
    lease = claim_one(lease_seconds=300)
    assert 240 < seconds_from_now(lease.lock_until) <= 300
    assert reap().total == 0
    heartbeat(lease, lease_seconds=60)
    fail(lease, error="x", delay_seconds=600)
    assert claim("q", worker="w") == []
    assert 540 < seconds_from_now(job(lease.job_id).run_at) <= 600


def test_a_hosts_own_zone_changes_nothing(monkeypatch):
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "Asia/Seoul")
    time.tzset()
    try:
        walk_through_all_verbs()
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


def test_the_clock_is_read_in_one_statement(django_assert_num_queries):
    with django_assert_num_queries(1):
        assert read_now("default").utcoffset() == timedelta(0)


def test_sub_second_delays_are_kept():
    moment = make_job()
    snooze(claim_one(), delay_seconds=0.25)
    assert -60 < seconds_from_now(job(moment).run_at) <= 0.25
    assert (
        connection.vendor == "sqlite"
        or job(moment).run_at.microsecond % 1000
        or job(moment).updated_at.microsecond % 1000
    )


@finding("K-C8")
def test_clocks_are_compared_whatever_the_settings(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "America/St_Johns"
    assert abs(compare_clocks("default").ahead_seconds) < 30
    assert list(clock_skew("default")) == []
