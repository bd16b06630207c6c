"""What a page costs does not grow with the table."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, enqueue_many
from jobqueue.admin.jobs import finding, search
from jobqueue.admin.page import readonly
from jobqueue.models import Worker
from tests.admin.helpers import JOBS, LIMIT_STATEMENTS, WORKERS, Inline, job_page, root, sent, text_of, viewer
from tests.factories import claim_one, make_in_state, make_job, make_jobs, set_columns

pytestmark = pytest.mark.django_db


def queries(client, path, data=None):
    """The SQL of the second request: the first one fills caches."""
    client.get(path, data)
    with CaptureQueriesContext(connection) as captured:
        page = text_of(client.get(path, data))
    return sent(captured), page


def on_jobs(statements):
    return [s for s in statements if "job_queue" in s]


#: what Django itself asks; ids of the page, their number, the rows; choices of the filters, counts of the tabs
LIST = {"plain": {}, "failed": {"state": "failed"}, "ready": {"state": "ready"},
        "queue": {"queue": "q"}, "cause": {"cause": "data"}, "by id": {"q": "1"}, "by key": {"q": "some-key"},
        "nothing": {"q": "x" * 10_000}}  # fmt: skip


@pytest.mark.parametrize("name", LIST)
def test_the_list_costs_the_same_up_to_the_cap_and_little_more_beyond_it(name):
    client, counts = viewer("retry_job"), []
    for many in (10, readonly.COUNT_CAP - 20, 600):
        enqueue_many("q", [{"n": n} for n in range(many)])
        statements, page = queries(client, JOBS, LIST[name])
        counts.append(len(statements))
        assert page.count('class="field-id"') <= 50
        for statement in on_jobs(statements):
            assert "LIMIT" in statement, statement
            assert "DISTINCT" not in statement
            assert "payload" not in statement
            assert "result" not in statement.replace("error_tail", "")
            assert "OFFSET" not in statement
    assert counts[0] == counts[1] <= 20
    assert counts[2] <= 32


def test_a_count_always_has_a_limit():
    enqueue_many("q", list(range(60)))
    client = root()
    for data in ({}, {"_facets": "True"}, {"all": ""}, {"state": "done"}, {"state": "ready", "_facets": "True"}):
        statements, page = queries(client, JOBS, data)
        counting = [s for s in on_jobs(statements) if "COUNT(" in s.upper()]
        assert len(counting) >= 3
        limits = (f"LIMIT {readonly.COUNT_CAP}", f"LIMIT {finding.SEARCHED}")
        assert [s for s in counting if not any(limit in s for limit in limits)] == []
        assert "Show counts" not in page


def test_a_count_stops_at_its_cap_and_says_so(monkeypatch):
    monkeypatch.setattr(readonly, "COUNT_CAP", 60)
    enqueue_many("q", list(range(75)))
    page = text_of(root().get(JOBS))
    assert "60+ jobs" in page
    assert '<span class="jobqueue-tab-count">60+</span>' in page


def root_page_ids(page):
    return page.count('class="field-id"')


@pytest.mark.parametrize("order", ["1", "3", "-5.2", "9", "x", "0.0"])
def test_no_address_can_ask_for_another_order(order):
    make_jobs(3)
    statements, _ = queries(root(), JOBS, {"o": order})
    texts = [re.sub(r"[`\"]", "", s) for s in on_jobs(statements)]
    [of_page] = [s for s in texts if s.endswith("LIMIT 51")]
    hint = r"( FORCE INDEX \(PRIMARY\))?"
    order = r"ORDER BY (1|job_queue.id) DESC LIMIT 51"
    assert re.fullmatch(rf"SELECT job_queue.id AS \w+ FROM job_queue{hint} {order}", of_page)


OTHER = ["queue__regex=(a%2B)%2B%24", "last_error__contains=x", "id__in=1", "now__gt=1", "a=b", "pk=1", "queue__in=a"]


@pytest.mark.parametrize("query", OTHER)
def test_other_parameters_are_refused(query):
    assert root().get(f"{JOBS}?{query}").status_code == 400


ODD = [
    "'",
    '"',
    "`",
    ";--",
    "%",
    "_",
    "%s",
    "%(x)s",
    "\\",
    "x" * 10_000,
    "\ud55c" * 30,
    ".*",
    "1 OR 1=1",
    "-1",
    "\u0661",
]
ODD += ["9" * 18, "9" * 19, "9" * 400, "\ufffd", "key\u200b", "KEY", "ke"]


@pytest.mark.parametrize("term", ODD)
def test_an_odd_search_finds_nothing_and_breaks_nothing(term):
    enqueue("q", 1, dedupe_key="key")
    assert root_page_ids(text_of(root().get(JOBS, {"q": term}))) == 0


def test_a_search_for_nul_is_refused_in_words():
    assert "Null characters are not allowed" in text_of(root().get(JOBS, {"q": "a\x00b"}))


@pytest.mark.parametrize("key", ["report-1", "100%", "a_b", "it's", "한국어", 'q"uote', "back\\slash", "123456"])
def test_a_job_is_found_by_its_whole_key_only(key):
    wanted = enqueue("a queue", 1, dedupe_key=key)
    enqueue("q", 2, dedupe_key=key + "x")
    page = text_of(root().get(JOBS, {"q": key}))
    assert root_page_ids(page) == 1
    assert job_page(wanted) in page


def test_a_job_is_found_by_its_id_and_the_queue_filter_narrows_the_search():
    one, two = enqueue("a", 1, dedupe_key="k"), enqueue("b", 1, dedupe_key="k")
    client = root()
    assert job_page(one) in text_of(client.get(JOBS, {"q": f" {one} "}))
    assert root_page_ids(text_of(client.get(JOBS, {"q": "k"}))) == 2
    page = text_of(client.get(JOBS, {"q": "k", "queue": "b"}))
    assert root_page_ids(page) == 1
    assert job_page(two) in page


def test_a_search_passes_over_so_many_queues_and_says_so(monkeypatch):
    monkeypatch.setattr(search, "QUEUES_SEARCHED", 2)
    for name in "abc":
        enqueue(name, 1, dedupe_key="k")
    page = text_of(root().get(JOBS, {"q": "k"}))
    assert root_page_ids(page) == 2
    assert "Only the first 2 queues were searched" in page


@pytest.mark.parametrize("queue", ["\x00", "a\x00b", "'; DROP TABLE job_queue", "%", "x" * 500])
def test_an_odd_queue_in_the_address_shows_nothing(queue):
    make_jobs(2)
    client = root()
    assert root_page_ids(text_of(client.get(JOBS, {"queue": queue}))) == 0
    assert root_page_ids(text_of(client.get(JOBS, {"queue": queue, "q": "k"}))) == 0


def test_a_list_of_big_rows_is_small():
    big = {"text": "x" * 500_000}
    for number in range(50):
        job_id = enqueue("q", big if number < 5 else {"text": "x" * 20_000})
        set_columns(job_id, last_error="e" * 60_000, result={"r": "x" * 10_000})
    statements, page = queries(root(), JOBS)
    assert root_page_ids(page) == 50
    assert len(page) < 200_000
    assert not [s for s in on_jobs(statements) if "payload" in s]


def test_the_page_of_a_big_job_is_small():
    job_id = enqueue("q", {"text": "x" * 1_000_000})
    set_columns(job_id, last_error="e" * 60_000, result="r" * 900_000)
    assert len(text_of(root().get(job_page(job_id)))) < 150_000


def test_the_pages_of_a_job_and_of_workers_cost_a_fixed_number_of_queries():
    client = root()
    job_id = make_in_state("FAILED")
    counts = [len(queries(client, job_page(job_id))[0])]
    make_jobs(200)
    counts.append(len(queries(client, job_page(job_id))[0]))
    assert counts[0] == counts[1] <= 10
    counts = []
    for number in range(12):
        Worker.objects.create(
            name=f"w{number}", host="h", pid=1, supervisor_pid=1, boot_id="b", queues="*", concurrency=1, version="1"
        )
        if number in (1, 11):
            claim_one(worker=f"w{number}")
            statements, page = queries(client, WORKERS)
            counts.append(len(statements))
            assert ">1 of 1</a>" in page
    assert counts[0] == counts[1] <= 6


def test_the_page_of_a_job_that_waits_asks_a_few_more_why():
    """What is set for the queue, workers, their leases, the last crash: explain_job() without the job's own row."""
    client, job_id = root(), make_job("q")
    plain = len(queries(client, job_page(make_in_state("CANCELED")))[0])
    assert len(queries(client, job_page(job_id))[0]) <= plain + 3
    Worker.objects.create(
        name="w", host="h", pid=1, supervisor_pid=1, boot_id="b", queues="*", concurrency=1, version="1"
    )
    counts = [len(queries(client, job_page(job_id))[0])]
    make_jobs(200)
    counts.append(len(queries(client, job_page(job_id))[0]))
    assert counts[0] == counts[1] <= plain + 3 + LIMIT_STATEMENTS <= 12 + 2 * LIMIT_STATEMENTS


def test_every_page_lives_with_a_strict_content_security_policy():
    job_id, client = make_in_state("PROCESSING"), root()
    for path in ("/admin/", "/admin/jobqueue/", JOBS, f"{JOBS}?state=running&q=1", job_page(job_id), WORKERS):
        found = Inline(text_of(client.get(path)))
        assert found.found == [], path
    sheets = [attrs.get("href") for tag, attrs in found.tags if tag == "link"]
    assert "/static/jobqueue/admin.css" in sheets
    assert "/static/jobqueue/admin.css" in text_of(client.get(job_page(job_id)))
