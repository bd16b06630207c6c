"""not_due of a job whose due time plain SQL has written in the zone of its session says so."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command

from jobqueue import enqueue
from jobqueue.doctor import Level, examine
from jobqueue.explain import explain_backlog, explain_job, explain_queue
from jobqueue.explain.states import is_in_zone
from jobqueue.models import Job
from tests.explain.helpers import checked, named
from tests.factories import now
from tests.marks import finding
from tests.settings import VENDOR

pytestmark = [pytest.mark.django_db, finding("M-F7")]
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SEOUL = timedelta(hours=9)
only_innodb = pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="instants have a zone, or there is none")


@pytest.mark.parametrize(
    ("run_at", "created_at", "offset", "expected"),
    [
        (NOW + SEOUL, NOW, SEOUL, True),
        (NOW + SEOUL, NOW - timedelta(seconds=3), SEOUL, True),
        (NOW + SEOUL, NOW + SEOUL, SEOUL, True),
        (NOW + timedelta(hours=8), NOW, SEOUL, False),
        (NOW + SEOUL, NOW - timedelta(minutes=1), SEOUL, False),
        (NOW + SEOUL, NOW, timedelta(0), False),
        (NOW - SEOUL, NOW, -SEOUL, False),
    ],
)
def test_only_a_due_time_that_is_as_far_behind_the_enqueue_as_the_zone_is_ahead_is_meant(
    run_at, created_at, offset, expected
):
    assert is_in_zone(run_at, created_at, NOW, offset) is expected


@pytest.fixture
def seoul(sql):
    """The session is in this zone, as those of a server in Korea are."""
    before = sql("SELECT @@SESSION.time_zone")[0][0]
    sql("SET time_zone = '+09:00'")
    yield
    sql("SET time_zone = %s", [before])


@only_innodb
def test_explain_and_doctor_name_the_job(seoul, sql):
    sql("INSERT INTO job_queue (queue, payload, run_at) VALUES ('q', '{}', NOW(6))")
    job_id = Job.objects.get().pk
    for explain in (lambda: explain_job(job_id), lambda: explain_queue("q"), explain_backlog):
        one = named(checked(explain()), "not_due")
        assert "NOW()" in one.text
        assert one.evidence["zone_seconds"] == 9 * 3600
        assert f"jobs retry {job_id}" in one.next_step
    (one,) = [one for one in examine() if one.id == "session_zone"]
    assert (one.level, one.evidence["jobs"]) == (Level.WARNING, [job_id])
    call_command("jobs", "retry", str(job_id), verbosity=0)
    assert Job.objects.get().run_at <= now()
    (one,) = [one for one in examine() if one.id == "session_zone"]
    assert one.level == Level.INFO


@only_innodb
def test_a_job_that_was_scheduled_for_another_time_is_not_meant(seoul):
    job_id = enqueue("q", 1, run_at=now() + timedelta(hours=2))
    assert "NOW()" not in named(checked(explain_job(job_id)), "not_due").text
