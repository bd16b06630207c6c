"""The overview: silent workers by name, jobs behind gates, and the queues over the chosen range."""

import re
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.admin.overview import page as overview_page
from jobqueue.admin.overview import reading
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.maintenance.worker_rows import retire_silent
from jobqueue.models import JobStat, Worker
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.stats import history
from tests.admin.helpers import HOSTILE, Inline, client_of, person, root, sent, text_of
from tests.factories import claim_one, make_job, make_jobs, now, set_columns
from tests.stats.helpers import add

pytestmark = pytest.mark.django_db
PAGE = "/admin/jobqueue/"


@pytest.fixture(autouse=True)
def nothing_kept():
    cache.clear()


def worker(name, silent=0, **columns):
    plain = {"host": "web-1", "pid": 211, "supervisor_pid": 1, "boot_id": "b", "queues": "*", "version": "1"}
    at = now() - timedelta(seconds=silent)
    return Worker.objects.create(name=name, heartbeat_at=at, **(plain | {"concurrency": 8} | columns))


def held_by(name, count, queue="mail"):
    make_jobs(count, queue)
    for _ in range(count):
        claim_one(queue, worker=name)


def show(client=None, query=""):
    page = text_of((client or root()).get(PAGE + query))
    assert Inline(page).found == []
    return page


def alarm_lines(page):
    block = re.search(r'<div class="jobqueue-alarms".*?</div>', page, re.S)
    lines = re.findall(r"<li>(.*?)</li>", block[0], re.S) if block else []
    return [re.sub(r"<[^>]+>", "", line) for line in lines]


def tile(page, word):
    found = re.search(rf"<li[^>]*><a([^>]*)>[^<]*<span class=\"jobqueue-tile-word\">{word}</span>(.*?)</a>", page, re.S)
    if not found:
        return None
    href = re.search(r'href="([^"]*)"', found[1])
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", found[2])).strip(), href and href[1]


class TestSilentWorkers:
    def test_each_is_named_with_what_it_holds_and_leads_to_its_page(self):
        worker("web-1:1:b/1.1")
        lost = worker("web-3:4121:b/1.1", silent=95)
        worker("web-4:7:b/1.1", silent=300)
        held_by("web-3:4121:b/1.1", 2)
        page = show()
        assert [re.sub(r"1m 3\d s|1m 3\ds", "1m 35s", line) for line in alarm_lines(page)] == [
            "worker web-3:4121: no heartbeat for 1m 35s, 2 leases will expire",
            "worker web-4:7: no heartbeat for 5m 0s; it holds no job",
        ]
        assert f'href="/admin/jobqueue/worker/{lost.pk}/change/"' in page
        assert tile(page, "Workers") == ("1 2 silent", "/admin/jobqueue/worker/")

    def test_one_that_was_marked_as_such_is_named_while_it_holds_jobs(self):
        worker("web-3:4121:b/1.1", silent=95)
        worker("web-4:7:b/1.1", silent=95)
        held_by("web-3:4121:b/1.1", 1)
        assert retire_silent(60, using="default") == 2
        (line,) = alarm_lines(show())
        assert line.endswith(", 1 lease will expire")

    def test_many_of_them_are_counted(self, monkeypatch):
        monkeypatch.setattr(overview_page, "SILENT_SHOWN", 2)
        for number in range(5):
            worker(f"web-{number}:1:b/1.1", silent=90)
        lines = alarm_lines(show())
        assert len(lines) == 3
        assert lines[2] == "and 3 more silent workers"

    def test_who_may_not_see_workers_is_not_told(self):
        worker("web-3:4121:b/1.1", silent=95)
        make_job("mail")
        assert "web-3" not in show(client_of(person("view_job", "view_jobalarm")))

    @pytest.mark.parametrize("hostile", HOSTILE)
    def test_a_hostile_name_is_text(self, hostile):
        worker(hostile, silent=95)
        worker("{0}{worker}:1", silent=95)
        page = show()
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "\u202e" not in page


class TestBlockedAndHeld:
    def test_without_such_jobs_there_is_no_tile(self):
        make_job("mail")
        page = show()
        assert tile(page, "Blocked") is None
        assert tile(page, "Held") is None

    def test_the_tile_tells_what_holds_them(self):
        for gate, count in ((KEY_GATE, 3), (FLOW_GATE, 2), (PARENTS_GATE, 1)):
            for job_id in make_jobs(count, "mail"):
                set_columns(job_id, gate=gate)
        make_jobs(4, "mail")
        note = "among ready and scheduled: by keys 3, by limits 2, by parents 1"
        assert tile(show(), "Blocked") == (f"6 {note}", None)

    def test_those_that_are_held_after_a_crash_have_a_list(self):
        set_columns(make_job("mail"), gate=HELD_GATE)
        page = show()
        assert tile(page, "Blocked") is None
        assert tile(page, "Held") == ("1 after crashes", "/admin/jobqueue/job/?state=held")
        assert '<li class="jobqueue-tile-warn"><a href="/admin/jobqueue/job/?state=held"' in page

    def test_a_count_above_the_cap_says_so(self, monkeypatch):
        monkeypatch.setattr(reading, "COUNTS_MAX", (2,))
        for job_id in make_jobs(3, "mail"):
            set_columns(job_id, gate=KEY_GATE)
        page = show()
        assert tile(page, "Blocked")[0].startswith("2+ ")
        assert tile(page, "Ready")[0].startswith("2+ ")

    def test_the_number_of_statements_does_not_grow_with_the_queues(self):
        counts, client = [], root()
        for queues in (3, 19):
            for number in range(queues):
                set_columns(make_job(f"q{number}"), gate=KEY_GATE)
            cache.clear()
            client.get(PAGE)
            cache.clear()
            with CaptureQueriesContext(connection) as captured:
                client.get(PAGE)
            counts.append(len(sent(captured)))
        assert counts[0] == counts[1] < 40


class TestQueuesOverTheRange:
    def cells(self, page):
        """By title of the column."""
        table = page[page.index("<h2>Queues</h2>") :]
        found = re.findall(r'<td role="cell" data-title="([^"]*)"[^>]*>(.*?)</td>', table, re.S)
        return {title: re.sub(r"<[^>]+>", "", text).strip() for title, text in found}

    def ended(self, minutes, **columns):
        begins_at = now().replace(second=0, microsecond=0) - timedelta(minutes=minutes)
        add(JobStat.Span.MINUTE, begins_at, queue="mail", **columns)

    def test_waits_runs_and_failures_are_those_of_the_range(self):
        make_job("mail")
        self.ended(2, done=9, retried=1, wait_times={"4": 10}, run_times={"9": 10})
        self.ended(40, done=0, dead=10, wait_times={"9": 10}, run_times={"9": 10})
        client = root()
        cells = self.cells(show(client, "?range=15m"))
        assert cells["Failed runs"] == "10 %"
        assert cells["Wait, p50 / p95"] == "75ms / 98ms"
        assert cells["Run, p50 / p95"] == "3.8s / 4.9s"
        assert self.cells(show(client, "?range=1h"))["Failed runs"] == "55 %"

    def test_the_course_of_ended_jobs_is_that_of_the_range(self):
        make_job("mail")
        self.ended(40, done=7)
        client = root()
        assert 'aria-label="Jobs that ended over the last 1 hour"' in show(client, "?range=1h")
        assert "jobqueue-spark" not in show(client, "?range=15m")

    def test_of_too_many_rows_mean_and_longest_are_told(self, monkeypatch):
        monkeypatch.setattr(history, "ROWS_MAX", 0)
        monkeypatch.setattr(history, "ROWS_SAMPLED", 0)
        make_job("mail")
        self.ended(2, done=2, runs=2, wait_us=4_000_000, wait_us_max=3_000_000, run_us=2_000_000, run_us_max=1_500_000)
        cells = self.cells(show())
        assert (cells["Wait, mean / longest"], cells["Run, mean / longest"]) == ("2s / 3s", "1s / 1.5s")

    def test_a_queue_in_which_nothing_ended_has_dashes(self):
        make_job("mail")
        cells = self.cells(show())
        assert [cells[name] for name in ("Failed runs", "Wait, p50 / p95", "Run, p50 / p95")] == ["-", "-", "-"]
