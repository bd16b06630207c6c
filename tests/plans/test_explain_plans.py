"""explain_job() and explain_queue() cost a few index seeks, whatever the table holds."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, enqueue_many, task
from jobqueue.explain import backlog, explain_backlog, explain_job, explain_queue, rows
from jobqueue.explain.rows import LEVELS_MAX
from jobqueue.flow import breaker, set_limit
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import GateSlot, GateWait, Job, Worker
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from tests.factories import now
from tests.gates import jobs
from tests.gates.helpers import add, taken
from tests.plans.conftest import LEVELS, READY
from tests.plans.test_plans import EXPLAIN, SCANS, SORTS, plan
from tests.plans.test_redrive_plans import reads
from tests.purge import wait_for_purge
from tests.settings import VENDOR

#: rows and index entries, or steps of SQLite's machine / 10, that no answer may exceed
READS_MAX = 400
#: statements about who waits for locks, and about transactions that were forgotten; SQLite has neither
ON_LOCKS = {"mysql": 4, "mariadb": 3, "postgres": 2}.get(VENDOR, 0)


@pytest.fixture
def workers(transactional_db):
    """Two that run, and many that have stopped."""
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "queues": "*", "concurrency": 2}
    Worker.objects.bulk_create(Worker(name=f"w{n}", version="1", **plain) for n in range(2))
    Worker.objects.bulk_create(
        Worker(name=f"old{n}", version="1", stopped_at="2020-01-01T00:00:00Z", **plain) for n in range(500)
    )
    with connection.cursor() as cursor:
        cursor.execute({"sqlite": "ANALYZE", "postgres": "ANALYZE job_worker"}.get(VENDOR, "ANALYZE TABLE job_worker"))


def sent(work):
    """The statements of `work`; the first call has prepared those that are kept."""
    work()
    with CaptureQueriesContext(connection) as captured:
        work()
    return [query["sql"] for query in captured.captured_queries]


def check(run, statement):
    """No table of ours is read as a whole, and nothing is sorted."""
    text = plan(run, statement)
    assert not [word for word in SORTS if word in text], f"{statement}\n{text}"
    if VENDOR in SCANS:
        assert SCANS[VENDOR] not in text, f"{statement}\n{text}"
    else:
        place = 4 if VENDOR == "mysql" else 3
        assert not [row for row in run(EXPLAIN + statement) if row[place] == "ALL" and "job_queue" in str(row[2])]


def a_due_job():
    return Job.objects.filter(queue="q", priority=LEVELS - 1, status=0, gate=0).values_list("pk", flat=True)[0]


def on_jobs(statements):
    return [text for text in statements if "job_queue" in text and text.lstrip("(").startswith("SELECT")]


def test_a_due_job_costs_six_statements(run, workers):
    job_id = a_due_job()
    statements = sent(lambda: explain_job(job_id))
    assert explain_job(job_id)[0].code == "workers_busy"
    assert len(statements) == 6 + ON_LOCKS, statements
    for statement in on_jobs(statements):
        check(run, statement)
    assert reads(lambda: explain_job(job_id)) < READS_MAX


def test_a_queue_costs_two_statements_for_each_priority_above_that_of_its_first_due_job_and_ten_more(run, workers):
    statements = sent(lambda: explain_queue("q"))
    assert explain_queue("q")[0].code == "workers_busy"
    # Now, what is set, whether writes are refused, the highest priority, its first job and its row, workers, leases,
    # the read of a claim, jobs that run; and above those that are due, a priority of delayed ones.
    assert len(statements) == 10 + 2 + ON_LOCKS, statements
    for statement in on_jobs(statements):
        check(run, statement)
    assert reads(lambda: explain_queue("q")) < READS_MAX


def test_no_more_priorities_are_read_than_that(db):
    for priority in range(3 * LEVELS_MAX):
        enqueue("q", 1, priority=priority, run_at=now() + timedelta(hours=1))
    assert len(sent(lambda: explain_queue("q"))) <= 10 + 2 * LEVELS_MAX


def test_a_queue_whose_jobs_all_run_or_have_ended_costs_no_more(run, workers):
    enqueue_many("done", range(1000))
    Job.objects.filter(queue="done").update(status=2)
    assert explain_queue("done")[0].code == "ended"
    assert len(sent(lambda: explain_queue("done"))) == 5
    assert reads(lambda: explain_queue("done")) < READS_MAX


def test_a_job_behind_gates_reads_what_holds_it_and_no_others(backlog, workers, own_registry):
    made = task(queue_name="q", priority=9, concurrency_limit=2, rate_limit="5/s", dependency="stripe")(jobs.work)
    ids = add(3, made)
    set_limit("q", concurrency=50, rate="100/s")
    assert taken(2) == ids[:2]
    assert taken(1) != ids[2:]
    assert Job.objects.get(pk=ids[2]).gate != 0
    assert explain_job(ids[2])[0].code in ("slot", "rate")
    statements = sent(lambda: explain_job(ids[2]))
    assert len(statements) <= 11, statements
    # Others wait there, too.
    subject = GateSlot.objects.values_list("subject", flat=True)[0]
    GateWait.objects.bulk_create(
        GateWait(job_id=10**6 + n, subject=subject, urgency=0, run_at="2020-01-01T00:00:00Z") for n in range(1000)
    )
    assert reads(lambda: explain_job(ids[2])) < READS_MAX
    breaker("stripe").open("x")
    assert len(sent(lambda: explain_job(ids[2]))) <= 11


def test_a_job_behind_its_ordering_key_reads_the_first_one_alone(backlog, workers):
    ids = enqueue_many("q", range(1000), ordering_key="k")
    assert explain_job(ids[-1])[0].code == "key"
    assert len(sent(lambda: explain_job(ids[-1]))) == 5
    assert reads(lambda: explain_job(ids[-1])) < READS_MAX


def test_the_backlog_costs_a_few_statements_whatever_the_jobs_and_reads_those_that_it_counts(run, workers, monkeypatch):
    monkeypatch.setattr(rows, "COUNT_MAX", 100)
    assert explain_backlog()[0].evidence["waiting_capped"] is True
    statements = sent(explain_backlog)
    # Now, names, which have READY jobs, gates, two for each priority, counts, delayed jobs, workers, jobs, what is set,
    # leases; writes, leases that have run out, silent workers, waits for locks.
    assert len(statements) <= 20 + 2 * LEVELS_MAX, statements
    for statement in on_jobs(statements):
        check(run, statement)
    assert reads(explain_backlog) < READS_MAX + 100 * LEVELS_MAX + 2 * 50 * LEVELS_MAX


def test_the_backlog_of_many_queues_costs_a_limited_number_of_statements(db, workers):
    for number in range(250):
        enqueue(f"queue {number}", 1, priority=number % 3)
    few = len(sent(explain_backlog))
    assert few < 60
    for number in range(250, 500):
        enqueue(f"queue {number}", 1, priority=number % 3)
    assert len(sent(explain_backlog)) <= few + 3, "three hundred more names to look at"
    assert explain_backlog()[0].evidence["queues_cut"] is True


QUEUES, GATES, TIMES = 60, (0, KEY_GATE, HELD_GATE, FLOW_GATE), 5


def fill(times):
    """READY jobs of two priorities behind each gate, and finished ones, in many queues."""
    with connection.cursor() as cursor:
        for _ in range(times):
            cursor.execute(
                "INSERT INTO job_queue (queue, status, priority, run_at, payload, gate, wait_reason, task) "
                "SELECT queue, status, priority, run_at, payload, gate, 'copy', task FROM job_queue "
                "WHERE wait_reason = 'seed'"
            )
        cursor.execute(
            {"sqlite": "ANALYZE", "postgres": "VACUUM ANALYZE job_queue"}.get(VENDOR, "ANALYZE TABLE job_queue")
        )


def seeds():
    """One job of each kind of fill()."""
    for number in range(QUEUES):
        for priority in (0, 1):
            states = [(0, gate) for gate in GATES] + [(2, 0), (3, 0)]
            for status, gate in states:
                yield Job(
                    queue=f"queue {number}",
                    status=status,
                    gate=gate,
                    priority=priority,
                    payload=1,
                    task="app.work",
                    wait_reason="seed",
                    run_at="2020-01-01T00:00:00Z",
                )


def test_the_backlog_of_a_table_five_times_as_large_costs_no_more(transactional_db, workers, monkeypatch):
    monkeypatch.setattr(rows, "COUNT_MAX", 4)
    monkeypatch.setattr(rows, "COUNT_LEAST", 2)
    monkeypatch.setattr(rows, "ENTRIES_MAX", 200)
    monkeypatch.setattr(backlog, "SAMPLE_MAX", 4)
    Job.objects.bulk_create(seeds())
    fill(5)
    small = len(sent(explain_backlog)), reads(explain_backlog)
    fill(5 * (TIMES - 1))
    wait_for_purge()
    large = len(sent(explain_backlog)), reads(explain_backlog)
    assert Job.objects.count() == QUEUES * 2 * 6 * (5 * TIMES + 1)
    assert large[0] == small[0] < 150, (small, large)
    assert large[1] < 1.2 * small[1] + 200, (small, large)
    assert large[1] < Job.objects.count() / 2


def test_the_backlog_is_larger_than_what_is_read():
    assert READY > 10 * READS_MAX
