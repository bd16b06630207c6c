"""The overview: what it shows to whom, in how many statements, and what it does when a read is slow."""

import re
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from jobqueue.admin.overview import page as overview_page
from jobqueue.admin.overview import reading
from jobqueue.admin.overview.page import RANGES, WORDS, sentence
from jobqueue.alarms import RUNBOOKS, Alarm
from jobqueue.exceptions import StatementTimeout
from jobqueue.flow import drain, pause
from jobqueue.models import Job, JobAlarm, JobAttempt, JobStat, Worker
from jobqueue.transitions import claim, fail
from tests.admin.helpers import HOSTILE, KEEPS_ALL, Inline, client_of, person, root, sent, text_of, viewer
from tests.factories import claim_one, job, make_job, make_jobs, now, set_columns
from tests.marks import finding
from tests.stats.helpers import add

pytestmark = pytest.mark.django_db
PAGE = "/admin/jobqueue/"


@pytest.fixture(autouse=True)
def nothing_kept():
    cache.clear()


def worker(name="web-1:211:b/1.1", **columns):
    plain = {"host": "web-1", "pid": 211, "supervisor_pid": 1, "boot_id": "b", "queues": "*", "version": "1"}
    return Worker.objects.create(name=name, **(plain | {"concurrency": 8} | columns))


def ended(queue="mail", minutes=1, **counts):
    begins_at = now().replace(second=0, microsecond=0) - timedelta(minutes=minutes)
    times = {"runs": 9, "wait_times": {"3": 9}, "run_times": {"2": 9}}
    return add(JobStat.Span.MINUTE, begins_at, queue, **(times | counts))


def failed(queue="mail", error="boom", task="shop.mail.tasks.send"):
    make_job(queue, task=task, max_attempts=1)
    (lease,) = claim(queue, worker="w")
    fail(lease, error=ValueError(error))
    return lease.job_id


def show(client=None, query=""):
    page = text_of((client or root()).get(PAGE + query))
    assert Inline(page).found == []
    return page


def plain_text(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_a_fresh_project_is_told_how_to_begin():
    page = show()
    assert "No job and no worker yet" in page
    assert "python manage.py runworker" in page


def test_the_tiles_count_jobs_and_workers_and_lead_to_them():
    worker()
    worker("web-2", heartbeat_at=now() - timedelta(minutes=9))
    make_jobs(3, "mail")
    set_columns(make_job("mail"), run_at=now() - timedelta(seconds=300))
    claim_one("mail", worker="web-1:211:b/1.1")
    page = show()
    words = plain_text(page)
    assert "Ready 3" in words
    assert "Running 1 of 8 threads" in words
    assert "Workers 1 1 silent" in words
    assert 'href="/admin/jobqueue/job/?state=ready"' in page


def test_a_count_above_the_cap_says_so(monkeypatch):
    monkeypatch.setattr(reading, "COUNTS_MAX", (2,))
    make_jobs(3, "mail")
    page = show()
    assert "Ready 2+" in plain_text(page)
    assert 'queue=mail">2+</a>' in page


def test_of_more_queues_fewer_jobs_of_each_are_counted(monkeypatch):
    assert [reading.count_max(queues) for queues in (0, 1, 10, 11, 20, 21, 500)] == [1000] * 3 + [500] * 2 + [250] * 2
    monkeypatch.setattr(reading, "COUNTS_MAX", (3, 2))
    monkeypatch.setattr(reading, "ENTRIES_MAX", 3)
    make_jobs(4, "mail")
    client = root()
    assert "Ready 3+" in plain_text(show(client))
    make_job("web")
    cache.clear()
    page = show(client)
    assert "Ready 3+" in plain_text(page)
    assert 'queue=mail">2+</a>' in page


def test_the_queue_with_the_longest_wait_comes_first():
    make_job("fast")
    set_columns(make_job("slow"), run_at=now() - timedelta(seconds=600))
    rows = re.findall(r'<th scope="row" role="rowheader">(.*?)</th>', show())
    assert [re.sub("<[^>]+>", "", row) for row in rows] == ["slow", "fast"]


def test_queues_that_are_not_shown_or_not_counted_are_told_of(monkeypatch):
    monkeypatch.setattr(overview_page, "QUEUES_SHOWN", 2)
    for queue in "abc":
        make_jobs(2, queue)
    client = root()
    words = plain_text(show(client))
    assert "The 2 queues with the longest wait are shown." in words
    assert "by name are counted" not in words
    assert "Ready 6 oldest" in words
    cache.clear()
    monkeypatch.setattr(reading, "QUEUES_READ", 2)
    words = plain_text(show(client))
    assert "Only the first 2 queues by name are counted." in words
    assert "Ready 4+ oldest" in words
    cache.clear()
    monkeypatch.setattr(reading, "QUEUES_READ", 3)
    assert "by name are counted" not in plain_text(show(client))


def test_many_alarms_are_counted(monkeypatch):
    monkeypatch.setattr(overview_page, "ALARMS_SHOWN", 1)
    for number in range(3):
        JobAlarm.objects.create(queue=f"q{number}", name="ready", value=7, threshold=5, firing=True, since=now())
    words = plain_text(show())
    assert "q0" in words
    assert "q1" not in words
    assert "and 2 more alarms" in words


def test_a_queue_that_is_paused_or_drained_says_so():
    for queue in ("mail", "web", "other"):
        make_job(queue)
    pause("mail", reason="the mail server moves")
    drain("web", reason="the last day")
    words = plain_text(show())
    assert "mail paused" in words
    assert "web draining" in words
    assert "other paused" not in words


def test_a_traceback_is_one_click_away_and_a_redrive_too():
    job_id = failed()
    page = show()
    assert f'href="/admin/jobqueue/job/{job_id}/change/#attempts"' in page
    assert f'href="/admin/jobqueue/redrive/new/?fingerprint={job(job_id).fingerprint}"' in page
    assert "mail.send" in page
    assert "ValueError: boom" in page
    assert 'id="attempts"' in text_of(root_again().get(f"/admin/jobqueue/job/{job_id}/change/"))


def test_the_message_of_a_failure_has_no_secrets_and_is_left_out_when_the_job_has_failed_otherwise_since():
    client = root()
    job_id = failed(error="password=hunter2zz")
    page = show(client)
    assert "ValueError: password=" in page
    assert "hunter2zz" not in page
    set_columns(job_id, last_error="KeyError: 'other'")
    cache.clear()
    page = show(client)
    assert "ValueError" in page
    assert "KeyError" not in page


def root_again():
    return client_of(person("view_job", name="bob"))


def test_what_failed_long_ago_does_not_fail_now():
    failed()
    JobAttempt.objects.update(ended_at=now() - timedelta(hours=2))
    assert "Failing in the last hour" not in show()


@pytest.mark.parametrize("key", [one.key for one in RANGES])
def test_each_range_has_its_charts(key):
    ended(done=7, dead=1)
    page = show(query=f"?range={key}")
    assert page.count('class="jobqueue-chart"') == 2
    assert f'<strong aria-current="true">{next(one.word for one in RANGES if one.key == key)}</strong>' in page


def test_an_unknown_range_is_the_first_one():
    assert '<strong aria-current="true">15 minutes</strong>' in show(query="?range=<script>")


def test_alarms_that_fire_stand_above_all():
    plain = {"firing": True, "since": now(), "incident": 1, "looked_at": now()}
    JobAlarm.objects.create(queue="mail", name="oldest_age_seconds", value=432, threshold=120, **plain)
    JobAlarm.objects.create(queue="", name="silent", value=2, threshold=1, **plain)
    words = plain_text(show())
    assert "queue mail: age of the oldest ready job 7m 12s, limit 2m 0s, since" in words
    assert "workers: silent workers 2, limit 1, since" in words
    assert {*WORDS} == {*RUNBOOKS}


def test_a_section_whose_read_takes_too_long_is_left_out(monkeypatch):
    def slow(using):
        raise StatementTimeout("too long")

    worker()
    make_job("mail")
    monkeypatch.setattr(reading, "queues", slow)
    words = plain_text(show())
    assert "Reading the queues took too long; they are left out." in words
    assert "Workers 1" in words
    assert "No job and no worker yet" not in words


def test_a_slow_read_is_not_repeated_by_each_who_looks(monkeypatch):
    asked = []

    def slow(using):
        asked.append(using)
        raise StatementTimeout("too long")

    monkeypatch.setattr(reading, "queues", slow)
    monkeypatch.setattr(reading, "alarms", slow)
    client = root()
    for _ in range(3):
        words = plain_text(show(client))
        assert "Reading the alarms took too long" in words
        assert "Reading the queues took too long" in words
    assert len(asked) == 2


def test_without_view_worker_nobody_is_told_that_there_is_no_worker():
    assert "No job and no worker yet" not in show(client_of(person("view_job")))


def test_ten_tabs_cost_the_reads_of_one(settings):
    settings.CACHES = KEEPS_ALL
    worker()
    make_jobs(3, "mail")
    ended(done=7)
    failed()
    client = root()
    client.get(PAGE)
    cache.clear()
    counts = []
    for _ in range(10):
        with CaptureQueriesContext(connection) as captured:
            client.get(PAGE)
        ours = [
            q["sql"] for q in captured.captured_queries if re.search(r"job_(queue|stat|attempt|worker|alarm)", q["sql"])
        ]
        counts.append(len(ours))
    assert counts[0] > 5
    assert counts[1:] == [0] * 9


def test_the_number_of_statements_does_not_grow_with_the_jobs():
    counts = []
    client = root()
    for many in (10, 300):
        for queue in ("a", "b"):
            make_jobs(many, queue)
            ended(queue, done=many)
        cache.clear()
        client.get(PAGE)
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            client.get(PAGE)
        counts.append(len(sent(captured)))
    assert counts[0] == counts[1] < 40


class TestPermissions:
    def test_somebody_without_any_gets_no_page(self):
        assert client_of(person()).get(PAGE).status_code in (302, 403, 404)

    def test_without_view_worker_there_are_no_workers(self):
        worker()
        make_job("mail")
        words = plain_text(show(client_of(person("view_job"))))
        assert "Ready 1" in words
        assert "threads" not in words
        assert "Workers" not in words

    def test_without_view_job_there_are_no_jobs(self):
        worker()
        failed()
        words = plain_text(show(client_of(person("view_worker"))))
        assert "Workers 1" in words
        assert "Ready" not in words
        assert "ValueError" not in words

    def test_without_redrive_jobs_there_is_no_way_to_a_redrive(self):
        failed()
        page = show(viewer())
        assert "Traceback" in page
        assert "redrive/new" not in page

    def test_the_navigation_shows_what_may_be_seen_in_the_order_of_use(self):
        page = show(viewer("view_redrive"))
        bar = re.search(r'<nav class="jobqueue-nav".*?</nav>', page, re.S)[0]
        assert re.findall(r">([A-Z][^<]+)</a>", bar)[:4] == ["Overview", "Jobs", "Workers", "Dead letters"]
        assert re.findall(r'aria-current="page">([^<]+)', bar) == ["Overview"]


@pytest.mark.parametrize("path", ["job/", "worker/", "redrive/", "schedule/", "outboxevent/", "lockstat/", "flowrule/"])
def test_each_list_has_the_navigation_with_its_own_entry(path):
    page = text_of(root().get(PAGE + path))
    assert (
        len(re.findall(r'aria-current="page">', re.search(r'<nav class="jobqueue-nav".*?</nav>', page, re.S)[0])) == 1
    )


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_text(hostile):
    failed(error=hostile, task=hostile)
    Job.objects.update(queue=hostile[:40].replace(":", "").replace(",", ""))
    ended(hostile[:40], done=3)
    JobAlarm.objects.create(
        queue=hostile[:40], name="ready", value=1, threshold=1, firing=True, since=now(), incident=1, looked_at=now()
    )
    page = show()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page


def test_the_page_speaks_korean():
    worker()
    make_job("mail")
    with translation.override("ko"):
        page = text_of(root(headers={"accept-language": "ko"}).get(PAGE))
    assert "대기" in page


@finding("O-M16")
def test_an_alarm_leads_to_what_it_is_about():
    at = now()
    of_queue = sentence(Alarm("mail", "dead_per_hour", 60, 50, at, 1), at)
    of_workers = sentence(Alarm("", "silent", 1, 1, at, 1), at)
    assert 'href="/admin/jobqueue/job/?queue=mail&amp;state=failed"' in of_queue
    of_held = sentence(Alarm("mail", "held", 9, 5, at, 1), at)
    assert 'href="/admin/jobqueue/job/?queue=mail&amp;state=held"' in of_held
    assert "held jobs 9, limit 5" in of_held
    assert 'href="/admin/jobqueue/worker/"' in of_workers
