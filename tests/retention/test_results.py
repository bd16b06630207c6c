"""result_ttl_seconds: how long the DONE jobs of a task are kept, whatever RETENTION says."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import task
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.maintenance import pruner
from jobqueue.models import Job, ResultExpiry
from jobqueue.retention import windows
from jobqueue.transitions import ack, ack_many, acking, claim, fail
from tests.factories import claim_one, set_columns
from tests.gates import jobs
from tests.marks import finding
from tests.retention.helpers import DAY, kept, left, prune

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_registry")]


@pytest.fixture
def short():
    return task(queue_name="q", result_ttl_seconds="1h")(jobs.work)


def done(made, seconds=0.0):
    """The id of a job of a task that ended so many seconds ago."""
    job_id = int(made.enqueue().id)
    ack(claim_one())
    pass_by(job_id, seconds)
    return job_id


def pass_by(job_id, seconds):
    set_columns(job_id, finished_at=UtcNowPlus(-seconds), run_at=UtcNowPlus(-seconds))
    for row in ResultExpiry.objects.filter(pk=job_id):
        ResultExpiry.objects.filter(pk=job_id).update(expires_at=UtcNowPlus(row.ttl_seconds - seconds))


def test_a_done_job_is_deleted_after_it(short):
    young = done(short, 3000)
    done(short, 3700)
    assert prune() == 1
    assert left() == [young]
    assert list(ResultExpiry.objects.values_list("pk", flat=True)) == [young]


def test_using_gives_a_job_its_own(short):
    own = done(short.using(result_ttl_seconds=60), 70)
    other = done(short, 70)
    assert prune() == 1
    assert left() == [other] != [own]


def test_a_longer_one_than_that_of_its_state_keeps_it(settings):
    kept(settings, done="1d")
    long = task(queue_name="q", result_ttl_seconds=timedelta(days=30))(jobs.work)
    stays = done(long, 20 * DAY)
    done(task(queue_name="q")(jobs.other), 2 * DAY)
    assert prune() == 1
    assert left() == [stays]
    pass_by(stays, 31 * DAY)
    assert prune() == 1


def test_a_failed_job_is_kept_as_its_state_says(short):
    job_id = int(short.enqueue().id)
    lease = claim_one()
    fail(lease, error="boom", retry=False)
    set_columns(job_id, finished_at=UtcNowPlus(-7200))
    assert prune() == 0
    assert left() == [job_id]


def test_a_job_that_was_run_again_counts_from_its_last_end(short):
    job_id = done(short, 3700)
    set_columns(job_id, finished_at=UtcNowPlus(-100))
    assert prune() == 0
    assert left() == [job_id]
    expiry = ResultExpiry.objects.get(pk=job_id).expires_at
    assert abs(expiry - Job.objects.get(pk=job_id).finished_at - timedelta(hours=1)) < timedelta(seconds=1)


def test_a_job_that_holds_its_dedupe_key_stays_until_the_key_is_free(short):
    job_id = done(short.using(dedupe_key="k"), 7200)
    assert prune() == 0
    assert left() == [job_id]
    expiry = ResultExpiry.objects.get(pk=job_id).expires_at
    assert abs(expiry - Job.objects.get(pk=job_id).finished_at - timedelta(days=1)) < timedelta(seconds=1)


@finding("S-A5")
def test_a_job_stays_until_the_window_of_its_key_has_ended(short):
    job_id = done(short.using(unique_seconds="30d"), 7200)
    over = done(short.using(unique_seconds=60, dedupe_key="k"), 7200)
    set_columns(over, created_at=UtcNowPlus(-7300))
    assert prune() == 1
    assert left() == [job_id]
    row = Job.objects.get(pk=job_id)
    expiry = ResultExpiry.objects.get(pk=job_id).expires_at
    assert abs(expiry - row.created_at - timedelta(days=30)) < timedelta(seconds=1)


def test_a_key_that_is_held_until_the_end_of_the_job_does_not_keep_it(short):
    done(short.using(unique="unfinished"), 3700)
    assert prune() == 1


def test_an_expiry_of_a_job_that_runs_again_or_is_gone_is_deleted(short):
    first, second = done(short, 3700), done(short, 3700)
    Job.objects.filter(pk=first).delete()
    set_columns(second, status=Job.Status.READY, finished_at=None)
    assert prune() == 0
    assert left() == [second]
    assert not ResultExpiry.objects.exists()


def test_acks_of_other_tasks_send_no_statement_more(short):
    task(queue_name="plain")(jobs.other).enqueue()
    lease = claim_one("plain")
    with CaptureQueriesContext(connection) as sent:
        ack(lease)
    assert len(sent) == 1


def test_acks_that_are_written_together_note_theirs_together(short):
    for _ in range(5):
        short.enqueue()
    leases = claim("q", 10, worker="w")
    ack_many(leases)
    assert ResultExpiry.objects.count() == 5


def test_each_expiry_is_written_to_the_database_of_its_job(short, monkeypatch):
    for _ in range(2):
        short.enqueue()
    here, there = claim("q", 2, worker="w")
    written = {}
    monkeypatch.setattr(acking, "_write_expiries", lambda ttls, using: written.update({using: ttls}))
    monkeypatch.setattr(acking, "retry_transient", lambda verb, work, using: work())
    acking.note_expiries([here, there._replace(using="other")])
    assert written == {"default": {here.job_id: 3600.0}, "other": {there.job_id: 3600.0}}


def test_an_ack_counts_although_its_expiry_cannot_be_written(short, monkeypatch, caplog):
    def refused(ttls, using):
        raise OperationalError("INSERT command denied")

    monkeypatch.setattr(acking, "_write_expiries", refused)
    first, second = (int(short.enqueue().id) for _ in range(2))
    one, other = claim("q", 2, worker="w")
    ack(one)
    with transaction.atomic():
        ack(other)
    assert [Job.objects.get(pk=job_id).status for job_id in (first, second)] == [Job.Status.DONE] * 2
    assert "their result_ttl_seconds could not be noted, so RETENTION decides" in caplog.text


def test_many_that_stay_do_not_delay_one_that_goes(short, monkeypatch):
    monkeypatch.setattr(windows, "SIZE", 2)
    for number in range(5):
        done(short.using(dedupe_key=f"k{number}"), 7200)
    goes = done(short, 3700)
    assert prune() == 1
    assert goes not in left()


def test_a_stream_of_expiring_results_does_not_keep_other_jobs(short, settings):
    kept(settings, done="7d")
    job_id = done(task(queue_name="q")(jobs.other), 8 * DAY)
    own = pruner.Pruner(once=True)
    for _ in range(20):
        done(short, 3700)
        own.run_once(load(), using="default")
    assert job_id not in left()


@pytest.mark.parametrize("value", [0, -1, "soon", True, [], float("inf"), 10**12])
def test_a_wrong_value_is_refused_with_the_name_of_the_task(value):
    with pytest.raises((InvalidValue, InvalidType), match=r"task tests\.gates\.jobs\.work: result_ttl_seconds"):
        task(queue_name="q", result_ttl_seconds=value)(jobs.work)
