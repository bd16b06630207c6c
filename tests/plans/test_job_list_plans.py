"""Each tab of the list of jobs, with each filter, reads a bounded number of jobs by an index."""

import re

import pytest
from django.db import connection

from jobqueue import enqueue_many
from jobqueue.admin.jobs import filters, finding, tabs
from jobqueue.admin.page import readonly
from jobqueue.admin.page.keyset import Cursor
from jobqueue.cli import jobs as listing
from jobqueue.models import Job, JobTag
from jobqueue.models.states import STATES
from tests.factories import claim_one
from tests.plans.test_explain_plans import on_jobs, sent
from tests.plans.test_plans import EXPLAIN, SORTS, plan
from tests.plans.test_redrive_plans import INNODB, analyze, reads
from tests.purge import wait_for_purge
from tests.settings import FULL, VENDOR

pytestmark = pytest.mark.django_db
# Of fewer jobs PostgreSQL may take the right index although its statistics are wrong.
TURNS = 60 if FULL else 12 if VENDOR == "postgres" else 6
SEED, CAP, WINDOW, TAGGED, PAGE = 500, 50, 100, 40, 20
#: index entries, the rows of a part for its totals and again for its ids, and what names the queues
READS_MAX = 3 * CAP + 2 * 2 * 2 * (2 * WINDOW) + 200
COPY = (
    "INSERT INTO job_queue (queue, status, gate, priority, run_at, payload, fingerprint, cause, task) "
    "SELECT %s, %s, 0, 0, run_at, payload, %s, 'data', 'shop.tasks.common' FROM job_queue WHERE queue = 'seed'"
)
MARK = "fedcba9876543210"
DAY = 86_400
CHOICES = {
    "": {}, "queue": {"queue": "q"}, "another queue": {"queue": "rare"}, "task": {"task": "shop.tasks.rare"},
    "tag": {"tag": "vip"}, "fingerprint": {"fingerprint": MARK}, "cause": {"cause": "format"},
    "expired": {"cause": "expired"}, "worker": {"worker": "web-1:1:b/1"}, "age": {"age": "24h"},
    "queue and task": {"queue": "q", "task": "shop.tasks.rare"}, "search": {"q": "seldom"},
}  # fmt: skip


STATISTICS = ["statistics of the table", "statistics of an empty table"]
if VENDOR == "postgres":
    # Other planners do not ask which values occur.
    STATISTICS.append("statistics of a table in which no job waits")
    # Nor whether rows stand in the order of their ids.
    STATISTICS.append("statistics of a table whose rows were written again")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Counts and parts that the rows below exceed, and all the time that they take."""
    for module, name, value in (
        (readonly, "COUNT_CAP", CAP), (finding, "SEARCHED", WINDOW), (finding, "WINDOWS_MAX", 2),
        (finding, "TAGGED", TAGGED), (finding, "LOOK_SECONDS", 60.0), (finding, "FURTHER_SECONDS", 60.0),
        (tabs, "OF_A_QUEUE", CAP),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    tabs._counted.cache_clear()
    yield
    tabs._counted.cache_clear()


@pytest.fixture(params=STATISTICS, scope="module")
def jobs(request, for_all_tests):
    """Old jobs that are done, failed and canceled, and then as many that wait, all of them of one queue; two run."""
    with for_all_tests(lambda: load(request.param)):
        yield


def load(statistics):
    if INNODB:
        # Built anew: ANALYZE would take its samples from pages in which earlier tests have left only deleted rows, and
        # find no row in the table, but 505 in its indexes.
        run("OPTIMIZE TABLE job_queue")
    enqueue_many("seed", [None] * SEED)
    enqueue_many("rare", [None] * 5)
    if statistics in ("statistics of an empty table", "statistics of a table in which no job waits"):
        if statistics != "statistics of an empty table":
            Job.objects.update(status=Job.Status.DONE)
        analyze()
    with connection.cursor() as cursor:
        for status in (2, 2, 3, 4, 0):
            for _ in range(TURNS):
                cursor.execute(COPY, ["q", status, MARK if status == 3 else None])
    tagged = list(Job.objects.filter(status=2).values_list("pk", flat=True)[: 3 * TAGGED])
    JobTag.objects.bulk_create(JobTag(job_id=job_id, tag="vip") for job_id in tagged)
    JobTag.objects.bulk_create(JobTag(job_id=job_id, tag="seldom") for job_id in tagged[:5])
    for _ in range(2):
        # No lease runs out while the tests of the module run.
        claim_one("q", worker="web-1:1:b/1", lease_seconds=DAY)
    if statistics == "statistics of a table whose rows were written again":
        with connection.cursor() as cursor:
            cursor.execute("UPDATE job_queue SET priority = 0 WHERE id % 7 IN (0, 2, 5)")
    if statistics in ("statistics of the table", "statistics of a table whose rows were written again"):
        analyze()
    wait_for_purge()


def run(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def selection(choice, state):
    return filters._selection(CHOICES[choice] | ({"state": state} if state else {}), "default", lambda text: None)


@pytest.mark.parametrize("choice", CHOICES)
def test_no_tab_with_this_filter_reads_more_than_a_few_parts(jobs, choice):
    costs = {}
    for state in ("", *STATES):
        wanted = selection(choice, state)
        found = finding.find(wanted, None, PAGE, "default")
        costs[state] = reads(lambda wanted=wanted: finding.find(wanted, None, PAGE, "default"))
        if found.behind is not None:
            behind = Cursor(back=False, values=(found.behind,))
            cost = reads(lambda wanted=wanted, behind=behind: finding.find(wanted, behind, PAGE, "default"))
            costs[f"{state}, older"] = cost
    limit = READS_MAX * (2 if VENDOR == "sqlite" else 1)
    assert {name: cost for name, cost in costs.items() if cost > limit} == {}, costs
    assert limit < 5 * TURNS * SEED


@pytest.mark.skipif(VENDOR == "postgres", reason="it may sort a part, which is small")
@pytest.mark.parametrize("choice", CHOICES)
def test_no_tab_with_this_filter_sorts_jobs_or_reads_all_of_them(jobs, choice):
    for state in ("", *STATES):
        wanted = selection(choice, state)
        for statement in on_jobs(sent(lambda wanted=wanted: finding.find(wanted, None, PAGE, "default"))):
            # A part is looked at as a table of its own, whose jobs are then sorted: no more than WINDOW.
            text = plan(run, inner(statement))
            assert not [word for word in SORTS if word in text], f"{statement}\n{text}"
            if INNODB:
                place = 4 if VENDOR == "mysql" else 3
                # COUNT(*) reads all of a part, <derived2>, which has a limit.
                read = [row[place] for row in run(EXPLAIN + inner(statement)) if not str(row[2]).startswith("<")]
                assert read
                assert "ALL" not in read, statement


def inner(statement):
    """The part of a statement over a part, else the statement."""
    found = re.search(r" FROM \((SELECT .*)\) c( WHERE c\.meets = 1.*)?$", statement, re.S)
    return found[1] if found else statement


def test_the_pages_of_a_tab_follow_each_other_by_seeks(jobs):
    """Also the last page of many, and back again."""
    ids = list(Job.objects.filter(status=2).order_by("pk").values_list("pk", flat=True))
    wanted = selection("", "done")
    for cursor in (Cursor(back=False, values=(ids[len(ids) // 2],)), Cursor(back=True, values=(ids[0],))):
        found = finding.find(wanted, cursor, PAGE, "default")
        assert len(found.ids) == PAGE
        cost = reads(lambda cursor=cursor: finding.find(wanted, cursor, PAGE, "default"))
        assert cost <= READS_MAX * (2 if VENDOR == "sqlite" else 1)


@pytest.mark.parametrize("state", ["ready", "scheduled", "held", "running", "expired"])
def test_jobs_list_reads_a_bounded_number_of_jobs_that_wait_or_run(jobs, monkeypatch, state):
    """`jobs list --state`: all of them by their index if they are few, else parts of the table."""
    monkeypatch.setattr(listing, "SEARCHED", WINDOW)
    monkeypatch.setattr(listing, "LOOK_SECONDS", -1.0)
    given = {"state": state, "limit": PAGE, "fingerprint": None, "queue": None, "task": None, "cause": None}
    ids, complete = listing._ids("default", given)
    assert complete == (state != "scheduled" and state != "held")
    assert bool(ids) == (state in ("ready", "running"))
    cost = reads(lambda: listing._ids("default", given))
    # The jobs of an index, twice, and a part of the table, twice.
    assert cost <= READS_MAX * (2 if VENDOR == "sqlite" else 1)
    for statement in on_jobs(sent(lambda: listing._ids("default", given))):
        text = plan(run, inner(statement))
        if VENDOR != "postgres":
            assert not [word for word in SORTS if word in text], f"{statement}\n{text}"


@pytest.mark.parametrize("queue", ["", "q", "rare"])
def test_the_counts_of_the_tabs_read_index_entries_up_to_their_cap(jobs, queue):
    wanted = filters._selection({"queue": queue} if queue else {}, "default", lambda text: None)
    cost = reads(lambda: tabs.tabs(wanted, "default"))
    # Eight states, and for those that wait each queue, gate and priority.
    assert cost <= (8 + 3 * 5 * 3) * 2 * (CAP + 10) * (2 if VENDOR == "sqlite" else 1)
