"""Dead letters are grouped by what went wrong, and each failure is recorded with its fingerprint."""

import pytest
from django.db import connection, transaction

from jobqueue.dead_letters import fingerprints
from jobqueue.exceptions import HardTimeout, InvalidValue, JobLost
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import claim, fail, fail_many, reap, retry
from tests.factories import claim_one, expire, job, make_due, make_in_state, make_job, make_jobs, set_columns
from tests.marks import committed

pytestmark = pytest.mark.django_db


def die(error, queue="q", **columns):
    """A job that has failed for good."""
    job_id = make_job(queue=queue, max_attempts=1, **columns)
    fail(claim_one(queue), error=error)
    return job_id


def test_a_failure_is_recorded_with_its_fingerprint():
    first, second = die(KeyError("a")), die(KeyError("b"))
    assert len(job(first).fingerprint) == 16
    assert job(first).fingerprint == job(second).fingerprint
    kept = JobAttempt.objects.filter(job_id=first).values_list("fingerprint", flat=True)
    assert list(kept) == [job(first).fingerprint]


def test_jobs_that_fail_for_the_same_reason_are_one_group_the_largest_first():
    ids = [die(ValueError(f"order {n} is closed"), task="app.tasks.book") for n in range(3)]
    other = die(ConnectionError("no route"), task="app.tasks.book")
    large, small = fingerprints()
    assert (large.count, large.cause, large.task) == (3, "data", "app.tasks.book")
    assert (large.error_class, large.sample_job_id) == ("builtins.ValueError", ids[-1])
    assert large.fingerprint == job(ids[0]).fingerprint
    assert large.first_seen == job(ids[0]).finished_at
    assert large.last_seen == job(ids[-1]).finished_at
    assert (small.count, small.cause, small.sample_job_id) == (1, "dependency", other)


def test_queue_task_and_cause_narrow_the_list():
    die(ValueError("x"), queue="a", task="app.tasks.one")
    die(ValueError("x"), queue="b", task="app.tasks.two")
    die(ConnectionError("x"), queue="b", task="app.tasks.two")
    assert len(fingerprints()) == 3
    assert [group.task for group in fingerprints(queue="a")] == ["app.tasks.one"]
    assert len(fingerprints(task="app.tasks.two")) == 2
    assert [group.cause for group in fingerprints(queue="b", cause="DATA")] == ["data"]
    assert fingerprints(queue="nowhere") == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"cause": "dta"}, "did you mean 'data'?"), ({"queue": ""}, "queue"), ({"cause": 7}, "cause must be one of")],
)
def test_a_wrong_filter_is_refused(wrong, words):
    with pytest.raises(InvalidValue) as caught:
        fingerprints(**wrong)
    assert words in str(caught.value)


def test_only_failed_jobs_count_and_a_retried_one_no_longer():
    job_id = die(ValueError("x"))
    make_job()
    fail(claim_one(), error=ValueError("x"))
    make_in_state("CANCELED")
    assert [group.count for group in fingerprints()] == [1]
    retry(job_id)
    assert fingerprints() == []


def test_failures_that_plain_sql_writes_have_no_fingerprint_and_are_groups_too():
    ids = make_jobs(2)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE job_queue SET status = 3, cause = 'unknown', last_error = 'x'")
    (group,) = fingerprints()
    assert (group.fingerprint, group.cause, group.task, group.error_class, group.count) == (
        None,
        "unknown",
        None,
        "",
        2,
    )
    assert group.sample_job_id == max(ids)


def test_runs_that_were_lost_are_one_group_for_each_task_whoever_notices():
    make_jobs(2, task="app.tasks.one", max_attempts=1)
    make_job(task="app.tasks.two", max_attempts=1)
    make_job(max_attempts=1)
    expire(*claim("q", 4, worker="host:1"))
    assert reap().dead == 4
    die(JobLost("killed by signal 9"), task="app.tasks.one")
    first = fingerprints()[0]
    assert (first.task, first.count, first.cause) == ("app.tasks.one", 3, "lost")
    assert {group.task for group in fingerprints(cause="lost")} == {"app.tasks.one", "app.tasks.two", None}
    kept = dict(JobAttempt.objects.values_list("job_id", "fingerprint"))
    assert kept == dict(Job.objects.values_list("pk", "fingerprint"))
    assert {group.error_class for group in fingerprints()} == {"jobqueue.exceptions.JobLost"}


def test_a_killed_run_and_a_failed_batch_are_recorded_too():
    die(HardTimeout("ran for 12 s"), task="app.tasks.one")
    make_jobs(2, max_attempts=1)
    fail_many(claim("q", 2, worker="w"), error=ValueError("x"))
    assert [(group.count, group.cause) for group in fingerprints()] == [(2, "data"), (1, "timeout")]


def test_the_newest_failure_counts():
    job_id = make_job(max_attempts=2)
    fail(claim_one(), error=ConnectionError("no route"))
    make_due(job_id)
    fail(claim_one(), error=ValueError("x"))
    (group,) = fingerprints()
    assert (group.cause, group.error_class) == ("data", "builtins.ValueError")
    history = JobAttempt.objects.filter(job_id=job_id).values_list("fingerprint", flat=True)
    assert len(set(history)) == 2


def test_the_groups_of_an_open_transaction_are_undone_with_it():
    job_id = make_job()
    with transaction.atomic():
        set_columns(job_id, status=Job.Status.FAILED)
        assert len(fingerprints(using="default")) == 1
        transaction.set_rollback(True)
    assert fingerprints() == []


@committed  # ANALYZE TABLE of MySQL commits
def test_the_table_is_not_scanned(django_assert_max_num_queries):
    make_jobs(500)
    dead = die(ValueError("x"))
    set_columns(dead, task="app.tasks.one")
    if connection.vendor != "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE TABLE job_queue" if connection.vendor == "mysql" else "ANALYZE job_queue")
    with django_assert_max_num_queries(2) as captured:
        fingerprints(cause="data")
    with connection.cursor() as cursor:
        prefix = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
        cursor.execute(prefix + captured.captured_queries[0]["sql"])
        plan = str(cursor.fetchall())
    # On PostgreSQL the index that has FAILED jobs only.
    assert ("ix_dead" if connection.vendor == "postgresql" else "ix_lease") in plan
