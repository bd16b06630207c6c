"""snapshot() reads index entries up to its cap, and the roll-up seeks the oldest rows."""

from datetime import timedelta

import pytest

from jobqueue import stats
from jobqueue.db.clock import read_now
from jobqueue.maintenance.stat_rollup import roll_up_some
from jobqueue.models import Job, JobStat
from jobqueue.models.stat import EPOCH
from jobqueue.stats import live
from jobqueue.stats.history import total_rows
from tests.plans.conftest import READY
from tests.plans.test_explain_plans import check, on_jobs, sent
from tests.plans.test_redrive_plans import reads
from tests.settings import VENDOR
from tests.stats.helpers import add


def test_no_statement_of_a_snapshot_reads_the_table_or_sorts(run):
    statements = sent(stats.snapshot)
    for statement in on_jobs(statements):
        check(run, statement)
    # Two queues, five priorities and three gates: names, priorities, counts of four kinds for each round of priorities.
    assert len(statements) < 60, statements


def test_the_number_of_statements_does_not_grow_with_the_queues(db):
    def count():
        return len(sent(stats.snapshot))

    jobs = [Job(queue=f"q{n}", status=0, payload={}, run_at="2020-01-01T00:00:00Z") for n in range(30)]
    Job.objects.bulk_create(jobs[:3])
    few = count()
    Job.objects.bulk_create(jobs[3:])
    assert count() <= few + 10


def test_a_snapshot_reads_no_more_entries_than_it_counts(run, monkeypatch):
    """With a cap of 100 it reads some hundreds of the entries, whatever the number of jobs."""
    monkeypatch.setattr(live, "COUNT_MAX", 100)
    cached = (live._due, live._not_due, live._any_time, live._of_status)
    for one in cached:
        one.cache_clear()
    try:
        stats.snapshot(queue="q")
        found = stats.snapshot(queue="q")[0]
        assert (found.ready, found.scheduled, found.capped) == (100, 100, True)
        # 101 of each kind, in statements of several priorities, which each read up to so many.
        assert reads(lambda: stats.snapshot(queue="q")) < 4000 < READY
    finally:
        for one in cached:
            one.cache_clear()


def test_a_queue_with_many_failed_jobs_is_read_up_to_the_cap(run, monkeypatch):
    """They are at the end of the table, and nothing has been analyzed since."""
    jobs = Job.objects.filter(queue="q", priority=0)
    jobs.filter(pk__in=list(jobs.values_list("pk", flat=True)[:500])).update(status=3, finished_at=read_now("default"))
    statements = [text for text in sent(lambda: stats.snapshot(queue="q")) if "failed" in text or "= 3" in text]
    for statement in on_jobs(statements):
        check(run, statement)
    assert stats.snapshot(queue="q")[0].failed == 500


def test_the_roll_up_seeks_what_is_old_enough(db):
    now = read_now("default").replace(second=0, microsecond=0)
    for number in range(200):
        add(JobStat.Span.PROCESS, now, task=f"t{number}", done=1)
        add(JobStat.Span.MINUTE, now - timedelta(minutes=20), task=f"t{number}", done=1)
    roll_up_some(using="default")
    assert reads(lambda: roll_up_some(using="default"), "job_stat") < 30
    old = add(JobStat.Span.PROCESS, now - timedelta(minutes=30), done=1)
    assert roll_up_some(using="default")["statistics_added_up"] == 1
    assert not JobStat.objects.filter(pk=old.pk).exists()


@pytest.mark.skipif(VENDOR == "postgres", reason="what it reads is counted by running the statements again")
def test_the_roll_up_reads_the_totals_of_its_tasks_only(db):
    now = read_now("default").replace(second=0, microsecond=0)
    for number in range(200):
        add(JobStat.Span.TOTAL, EPOCH, task=f"t{number}", done=1)
        add(JobStat.Span.DAY, now - timedelta(days=20), task=f"t{number}", done=1)
    add(JobStat.Span.PROCESS, now - timedelta(minutes=30), task="t7", done=1)
    reading = reads(lambda: roll_up_some(using="default"), "job_stat")
    assert list(total_rows("default").filter(task="t7").values_list("done", flat=True)) == [2]
    assert reading < 60
