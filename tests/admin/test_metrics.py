"""The page of metrics: what it shows of which time, queue and task, to whom, and in how many statements."""

import hashlib
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.cache import cache
from django.db import connection
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import jobqueue
from jobqueue import metrics
from jobqueue.admin import metrics as metrics_page
from jobqueue.admin.metrics import RANGES, offered
from jobqueue.exceptions import StatementTimeout
from jobqueue.models import JobStat
from jobqueue.models.stat import EPOCH
from jobqueue.stats import history
from tests.admin.helpers import HOSTILE, KEEPS_ALL, LIMIT_STATEMENTS, Inline, client_of, person, root, text_of
from tests.factories import now
from tests.stats.helpers import add

pytestmark = pytest.mark.django_db
PAGE = "/admin/jobqueue/metrics/"
VENDOR = Path(jobqueue.__file__).parent / "static" / "jobqueue" / "vendor" / "uplot-1.6.32"
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def nothing_kept():
    cache.clear()


def ended(queue="mail", task="shop.mail.tasks.send", ago=timedelta(minutes=2), span=JobStat.Span.MINUTE, **counts):
    plain = {"runs": 9, "wait_times": {"3": 9}, "run_times": {"6": 9}, "run_us": 9 * 10**6}
    return add(span, now() - ago, queue, task, **(plain | counts))


def viewer():
    return client_of(person("view_job"))


def show(client=None, **query):
    page = text_of((client or root()).get(PAGE, query))
    assert Inline(page).found == []
    return page


def words_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def rows_of(page, title):
    section = re.search(rf"<h2>{title}</h2>.*?</section>", page, re.S)[0]
    return [words_of(row).strip() for row in re.findall(r'<tr role="row">.*?</tr>', section, re.S)[1:]]


def data_of(page):
    return json.loads(re.search(r'<script id="jobqueue-history" type="application/json">(.*?)</script>', page, re.S)[1])


def test_the_sums_of_the_time_stand_above_the_charts():
    ended(done=1200, retried=30, dead=6)
    words = words_of(show())
    assert "Ended 1,206 6 failed for good" in words
    assert "Failed runs 2.9 % 30 runs were retried" in words
    assert "Wait, median 38ms 95 % at most 49ms" in words
    assert "Total run time 9s" in words


def test_many_failures_are_marked_and_few_are_not_rounded_to_none():
    ended(done=10, retried=5)
    assert 'class="jobqueue-tile-bad"' in show()
    cache.clear()
    ended(done=10**6)
    page = show(root_again())
    assert "below 0.1 %" in page
    assert "jobqueue-tile-bad" not in page


def root_again():
    return client_of(person("view_job", name="bob"))


def test_each_queue_and_each_task_has_a_row_that_leads_to_it_alone():
    ended("mail", done=5)
    ended("mail", "shop.tasks.bill", done=70, dead=7)
    ended("web", "", done=1)
    page = show(range="24h")
    assert rows_of(page, "By queue") == [
        "mail 82 7 8.5 % 38ms 49ms 375ms 487ms 18s",
        "web 1 - - 38ms 49ms 375ms 487ms 9s",
    ]
    assert [row.split()[0] for row in rows_of(page, "By task")] == ["shop.bill", "mail.send", "(handler)"]
    assert 'href="?range=24h&amp;queue=mail"' in page
    assert 'href="?range=24h&amp;task=shop.tasks.bill"' in page


def test_one_queue_and_one_task_can_be_chosen():
    ended("mail", done=5)
    ended("mail", "shop.tasks.bill", done=70)
    ended("web", "shop.tasks.bill", done=900)
    page = show(queue="mail")
    assert "Ended 75" in words_of(page)
    assert "By queue" not in page
    assert [row.split()[0] for row in rows_of(page, "By task")] == ["shop.bill", "mail.send"]
    page = show(root_again(), queue="mail", task="shop.tasks.bill")
    assert "Ended 70" in words_of(page)
    assert '<option value="mail" selected>' in page
    assert 'value="shop.tasks.bill" list=' in page
    assert 'href="?range=7d&amp;queue=mail&amp;task=shop.tasks.bill"' in page


def test_names_can_be_chosen_in_which_nothing_ended_lately():
    ended()
    for queue, task in (("old", "shop.tasks.old"), ("mail", "shop.tasks.rare")):
        add(JobStat.Span.TOTAL, EPOCH, queue, task, done=3)
    page = show()
    assert '<option value="old">' in page
    assert '<option value="shop.tasks.old">' in page
    assert '<option value="shop.tasks.old">' not in show(root_again(), queue="mail")


@pytest.mark.parametrize("span", RANGES, ids=lambda one: one.key)
def test_each_range_has_its_charts_with_all_that_ended_in_it(span):
    ended(done=7, dead=1)
    ended(done=100, ago=span.length - span.part, span=JobStat.Span.DAY)
    ended(done=10_000, ago=span.length + span.part + DAY, span=JobStat.Span.DAY)
    page = show(range=span.key)
    assert f'aria-current="page">{span.word}</a>' in page
    assert "Ended 108" in words_of(page)
    assert page.count('class="jobqueue-svg"') == 4
    assert str(span.unit) in page
    data = data_of(page)
    assert len(data["times"]) == span.length / span.part + 1
    assert sum(data["charts"]["ended"]["series"][0]["values"]) == 107
    assert {one["kind"] for one in data["charts"]["waits"]["series"]} == {"p50", "p95"}


def test_an_unknown_range_is_the_first_one():
    assert 'aria-current="page">1 hour</a>' in show(range="<script>")


def test_ranges_beyond_the_age_of_all_statistics_are_not_offered(settings):
    assert [one.key for one in offered(None)] == ["1h", "24h", "7d", "30d", "90d"]
    assert [one.key for one in offered(DAY.total_seconds())] == ["1h", "24h"]
    settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "STAT_RETENTION_SECONDS": 10 * 86_400}
    ended(done=1)
    page = show(range="30d")
    assert "90 days" not in page
    assert "Statistics are kept for 10d 0h: STAT_RETENTION_SECONDS." in page


@pytest.mark.parametrize("most", [2, 3])
def test_where_a_list_of_queues_would_leave_some_out_the_name_is_written(most, monkeypatch):
    monkeypatch.setattr(metrics_page, "CHOICES_MAX", most)
    for queue in "abc":
        ended(queue, done=1)
    page = show()
    assert ('<input type="text" name="queue"' in page) == (most == 2)
    assert ('<select name="queue"' in page) == (most == 3)


def test_if_no_run_failed_the_chart_says_so_in_words():
    ended(done=3)
    page = show()
    assert "No run failed in this time." in page
    assert "failed" not in data_of(page)["charts"]


def test_without_statistics_the_page_says_what_will_show_here():
    page = show()
    assert "Nothing ended in this time." in page
    assert "Workers write every ten seconds" in page
    assert "jobqueue-chart" not in page
    assert "history.js" not in page


def test_a_queue_in_which_nothing_ended_leads_back_to_all():
    ended(done=3)
    page = show(queue="quiet")
    assert "Nothing ended in this time." in page
    assert '<a href="?range=1h">Show all queues</a>' in page
    assert '<option value="quiet" selected>' in page


def test_estimates_and_tables_that_leave_something_out_are_told(monkeypatch):
    monkeypatch.setattr(history, "ROWS_MAX", 2)
    monkeypatch.setattr(history, "ROWS_SAMPLED", 1)
    monkeypatch.setattr(history, "KINDS_MAX", 3)
    monkeypatch.setattr(metrics_page, "ROWS_SHOWN", 2)
    for number in range(4):
        ended(f"q{number}", done=number + 1)
    page = words_of(show())
    assert "estimates from 25 % of the rows of statistics; counts are of all rows." in page
    assert "pairs of queue and task with the most ended jobs only" in page
    assert "q3 4" in page
    assert "q1 2" not in page
    assert "Ended 10" in page


def test_a_read_that_is_stopped_says_so_and_is_not_repeated_by_each_who_looks(monkeypatch):
    asked = []

    def slow(*args, **kwargs):
        asked.append(args)
        raise StatementTimeout("too long")

    ended(done=3)
    monkeypatch.setattr(metrics_page, "ended", slow)
    client = root()
    for _ in range(3):
        page = show(client)
        assert "Reading the statistics took too long, and was stopped." in page
        assert "Nothing ended" not in page
    assert len(asked) == 1


def test_ten_tabs_cost_the_reads_of_one_and_each_choice_has_its_own(settings):
    settings.CACHES = KEEPS_ALL
    ended("mail", done=3)
    ended("web", done=40)
    client, counts = root(), []
    for query in ({}, {}, {"queue": "mail"}, {"queue": "mail"}, {"task": "mail"}, {"range": "7d"}):
        with CaptureQueriesContext(connection) as captured:
            client.get(PAGE, query)
        counts.append(len([one for one in captured.captured_queries if "job_stat" in one["sql"]]))
    # The names that can be chosen are read once; without rows there are no kinds to add up.
    assert counts == [5, 0, 4, 0, 1, 4]


def test_the_number_of_statements_does_not_grow_with_the_statistics():
    client, counts = root(), []
    client.get(PAGE)
    for many in (2, 60):
        for number in range(many):
            ended(f"q{number}", f"t{number}", done=1)
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            client.get(PAGE)
        statements = [one["sql"] for one in captured.captured_queries]
        assert not [one for one in statements if "job_queue" in one]
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 20 + LIMIT_STATEMENTS


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_text(hostile):
    ended(hostile[:40], hostile, done=3)
    add(JobStat.Span.TOTAL, EPOCH, hostile[:40], hostile, done=3)
    client = root()
    for query in ({}, {"queue": hostile[:40]}, {"task": hostile}, {"queue": hostile, "task": hostile}):
        page = show(client, **query)
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert 'href="javascript' not in page
        # The value of a choice is the name itself.
        assert "\u202e" not in words_of(page)


ODD = ["\x00", "a\x00b", "'; DROP TABLE job_stat", "%", "x" * 5000, "한" * 100, "\U0001f469", "a b", "MAIL"]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_finds_nothing_and_breaks_nothing(name):
    ended("mail", done=3)
    client = root()
    for query in ({"queue": name}, {"task": name}):
        assert "Nothing ended in this time." in show(client, **query)


def test_times_are_those_of_the_active_zone_and_a_day_is_one_of_utc():
    ended(done=3)
    with timezone.override("Asia/Seoul"):
        page = show(range="30d")
    assert data_of(page)["zone"] == "Asia/Seoul"
    assert "Days begin at midnight UTC." in page
    assert "time (Asia/Seoul)" in page
    with timezone.override("UTC"):
        assert "Days begin" not in show(root_again(), range="30d")


def test_in_a_zone_without_a_name_the_charts_are_those_without_scripts():
    ended(done=3, dead=1)
    with timezone.override(timezone.get_fixed_timezone(90)):
        page = show()
    assert page.count('class="jobqueue-svg"') == 4
    assert "jobqueue-history" not in page


class TestPermissions:
    def test_without_view_job_there_is_neither_the_page_nor_its_entry(self):
        client = client_of(person("view_worker", "view_flowrule"))
        assert client.get(PAGE).status_code == 403
        assert PAGE not in text_of(client.get("/admin/jobqueue/"))

    def test_view_job_is_enough(self):
        ended(done=3)
        assert "Ended 3" in words_of(show(viewer()))

    def test_its_entry_stands_between_locks_and_audit(self):
        bar = re.search(r'<nav class="jobqueue-nav".*?</nav>', show(), re.S)[0]
        names = re.findall(r">([A-Z][^<]+)</a>", bar)
        place = names.index("Metrics")
        assert names[place - 1 : place + 2] == ["Locks", "Metrics", "Audit"]
        assert re.findall(r'aria-current="page">([^<]+)', bar) == ["Metrics"]

    def test_who_is_no_staff_is_asked_to_log_in(self):
        assert client_of(person("view_job", staff=False)).get(PAGE).status_code == 302


def test_the_address_for_prometheus_is_named_where_the_project_has_one(monkeypatch):
    assert "This project serves them at <code>/metrics</code>" in show(viewer())
    assert 'This project serves them at <a href="/metrics">/metrics</a>' in show()
    monkeypatch.setattr(metrics, "view", lambda request: HttpResponse())
    page = show(root_again())
    assert "see Monitoring in the documentation" in page
    assert "This project serves them at" not in page


def test_the_vendored_script_is_the_one_whose_hash_its_page_names():
    page = (VENDOR / "README.md").read_text()
    hashes = dict(re.findall(r"SHA-256 of `(.+?)`: `([0-9a-f]{64})`", page))
    assert set(hashes) == {one.name for one in VENDOR.iterdir()} - {"README.md"}
    for name, known in hashes.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == known, name


def test_the_page_loads_the_vendored_script_only_where_it_is_used():
    ended(done=3)
    assert "/static/jobqueue/vendor/uplot-1.6.32/uPlot.iife.min.js" in show()
    assert "uPlot" not in text_of(root_again().get("/admin/jobqueue/"))
