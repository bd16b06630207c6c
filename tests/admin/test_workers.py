"""The list of workers and the page of one: which jobs each holds, and where its threads are."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue.admin import workers
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.maintenance import worker_rows
from jobqueue.models import Job, Worker
from jobqueue.transitions import claim
from tests.admin.helpers import HOSTILE, WORKERS, Inline, act, client_of, job_page, person, root, sent, text_of, viewer
from tests.admin.test_actions import said
from tests.app import tasks
from tests.factories import make_jobs, now, set_columns

pytestmark = pytest.mark.django_db

NAME = "web-1:211:5f0c2a9e/1.1"
ANSWER = {
    "answered": True,
    "places": [
        {"jobs": [[812, 3]], "threads": 1, "stack": ["shop/tasks.py:12 send", "socket.py:836 connect"],
         "database": None, "looks": 2, "unchanged_seconds": 12.5},
        {"jobs": [], "threads": 7, "stack": ["queue.py:171 get"], "database": None, "looks": 1,
         "unchanged_seconds": 0.0},
    ],
    "unreachable": {},
}  # fmt: skip


def worker(name=NAME, **columns):
    plain = {"host": "web-1", "pid": 211, "supervisor_pid": 200, "boot_id": "5f0c2a9e", "queues": "mail,media"}
    made = Worker.objects.create(name=name, version="0.1", concurrency=8, heartbeat_seconds=15.0, **plain)
    if columns:
        Worker.objects.filter(pk=made.pk).update(**columns)
    return made


def page_of(made):
    return reverse("admin:jobqueue_worker_change", args=[made.pk])


def holds(count, name=NAME, queue="default"):
    """The ids of `count` jobs that a worker holds."""
    ids = [int(tasks.greet.enqueue("ann", number).id) for number in range(count)]
    leases = claim(queue, count, worker=name, lease_seconds=600)
    assert len(leases) == count
    return ids


class TestTheList:
    def test_shows_how_many_threads_are_busy_and_the_first_jobs_with_links(self):
        worker()
        ids = holds(5)
        page = text_of(viewer().get(WORKERS))
        assert ">5 of 8</a>" in page
        assert "/job/?state=running&amp;worker=web-1%3A211%3A5f0c2a9e%2F1.1" in page
        assert [job_id for job_id in ids if f'<a href="{job_page(job_id)}">' in page] == ids[: workers.IN_LIST]
        assert "app.greet, " in page
        assert "and 2 more" in page

    def test_has_no_search_so_a_term_in_its_address_changes_nothing(self):
        worker()
        response = viewer().get(WORKERS, {"q": "other"})
        assert response.status_code == 200
        assert "web-1:211" in text_of(response)

    def test_without_view_job_the_jobs_are_a_number(self):
        worker()
        (job_id,) = holds(1)
        page = text_of(client_of(person("view_worker")).get(WORKERS))
        assert "1 of 8" in page
        assert job_page(job_id) not in page
        assert "app.greet" not in page

    def test_marks_those_that_are_silent_and_what_they_are_short_of(self):
        worker(heartbeat_at=UtcNowPlus(-600), troubles={"memory": {"free": 1, "limit": 2, "of": "host"}, "odd": 1})
        page = text_of(viewer().get(WORKERS))
        assert '<span class="jobqueue-state jobqueue-expired">no heartbeat</span>' in page
        assert "short of memory" in page

    @pytest.mark.parametrize(("state", "shown"), [("live", {"a"}), ("stopped", {"b"}), ("", None), ("bogus", None)])
    def test_is_narrowed_to_those_that_have_not_stopped(self, state, shown):
        worker("a")
        worker("b", stopped_at=UtcNow(), stop_reason="SIGTERM")
        response = viewer().get(WORKERS, {"state": state})
        if shown is None:
            assert response.status_code in (302, 400) or "state" in response.content.decode()
            return
        page = text_of(response)
        assert {name for name in "ab" if f">{name}</" in page} == shown
        assert page.partition("jobqueue-sections")[2].partition("</nav>")[0].count('aria-current="page"') == 1

    def test_offers_no_action_and_costs_the_same_however_many_jobs_are_held(self):
        client, counts = root(), []
        for number in (1, 9):
            for each in range(number):
                worker(f"w{number}-{each}")
                holds(2, f"w{number}-{each}")
            client.get(WORKERS)
            with CaptureQueriesContext(connection) as captured:
                page = text_of(client.get(WORKERS))
            counts.append(len(sent(captured)))
            assert 'name="action"' not in page
        assert counts[0] == counts[1] <= 7


class TestThePage:
    def test_shows_the_jobs_with_their_times_and_the_process(self):
        made = worker()
        ids = holds(2)
        page = text_of(viewer().get(page_of(made)))
        assert f"<h1>web-1:211 (worker {made.pk})</h1>" in page
        for job_id in ids:
            assert f'<a href="{job_page(job_id)}">{job_id}</a>' in page
        for text in ("2 of 8", "threads busy", "mail,media", "5f0c2a9e", ">Held since<", "one every 15s", "0.1"):
            assert text in page, text
        assert re.search(r">in (10m 0s|9m 5\ds)<", page)
        assert "Stopped at" not in page
        assert "<dd>-</dd>" not in page

    def test_of_many_jobs_the_first_are_shown_with_a_way_to_all(self, monkeypatch):
        monkeypatch.setattr(workers, "ON_PAGE", 3)
        made = worker()
        holds(5)
        page = text_of(viewer().get(page_of(made)))
        assert page.partition("Jobs that it holds")[2].count('<th scope="row"') == 3
        assert "The first 3 of 5 jobs." in page
        assert "All of them" in page

    def test_without_view_job_no_job_is_shown(self):
        made = worker()
        (job_id,) = holds(1)
        page = text_of(client_of(person("view_worker", "release_job")).get(page_of(made)))
        assert "You may not see jobs." in page
        assert job_page(job_id) not in page

    def test_says_what_becomes_of_the_jobs_of_a_silent_worker(self):
        made = worker(heartbeat_at=UtcNowPlus(-600), clock_ahead_seconds=-7.0)
        holds(1)
        page = text_of(viewer("release_job").get(page_of(made)))
        assert "its jobs run again when their leases have ended" in page
        assert "worker=web-1%3A211%3A5f0c2a9e%2F1.1&amp;verb=release" in page
        assert "7s behind the database" in page
        page = text_of(client_of(person("view_worker", "view_job", name="bob")).get(page_of(made)))
        assert "verb=release" not in page

    def test_of_a_worker_that_has_stopped_it_says_why(self):
        made = worker(stopped_at=UtcNow(), stop_reason="SIGTERM")
        page = text_of(viewer("release_job").get(page_of(made)))
        assert "stopped: SIGTERM" in page
        assert "None." in page
        assert "Ask for stacks" not in page

    def test_costs_a_fixed_number_of_queries(self):
        client, made, counts = root(), worker(), []
        for count in (1, 6):
            holds(count)
            client.get(page_of(made))
            with CaptureQueriesContext(connection) as captured:
                text_of(client.get(page_of(made)))
            counts.append(len(sent(captured)))
        assert counts[0] == counts[1] <= 7

    def test_cannot_be_edited(self):
        made, client = worker(), root()
        page = text_of(client.get(page_of(made)))
        assert "_save" not in page
        assert client.post(page_of(made), {"name": "x", "_save": "Save"}).status_code == 403
        assert Worker.objects.get().name == NAME

    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_text_is_text(self, text):
        names = {"host": text, "queues": text, "stop_reason": text, "version": text[:32], "boot_id": text[:32]}
        made = worker(text, **names, troubles=[text], retries={text: text}, stacks=hostile(text), stacks_at=UtcNow())
        set_columns(make_jobs(1)[0], task=text)
        claim("q", worker="w")
        Job.objects.update(locked_by=text)
        client = root()
        for path in (WORKERS, page_of(made)):
            page = text_of(client.get(path))
            assert "<script>alert" not in page
            assert "\u202e" not in page
            assert Inline(page).found == []
            assert [tag for tag, attrs in Inline(page).tags if tag == "img" and attrs.get("src") == "x"] == []

    def test_secrets_in_the_counts_of_retries_are_masked(self):
        made = worker(retries={"api_key": "hunter2zz"})
        assert "hunter2zz" not in text_of(viewer().get(page_of(made)))


def hostile(text):
    place = {"jobs": [[1, 1]], "threads": 1, "stack": [text], "database": text, "looks": 2, "unchanged_seconds": 1.0}
    return {"answered": True, "places": [place, text, {"jobs": text}, {}], "unreachable": {text: text}}


class TestStacks:
    def test_are_asked_for_by_a_button_and_shown_when_they_have_come(self):
        made, client = worker(), viewer("release_job")
        assert 'value="ask_stacks" formaction' in text_of(client.get(page_of(made)))
        response = act(client, "ask_stacks", made.pk, path=WORKERS, jobqueue_page="1")
        assert (response.status_code, response["Location"]) == (302, page_of(made))
        assert said(response) == "1 worker was asked; it answers within seconds."
        assert worker_rows.stacks_asked([NAME], using="default") == [NAME]
        assert LogEntry.objects.get().get_change_message() == "ask for stacks (was running)"
        assert "It answers within seconds: load the page again." in text_of(client.get(page_of(made)))
        worker_rows.write_stacks(NAME, ANSWER, using="default")
        page = text_of(client.get(page_of(made)))
        told = ["Answered", "shop/tasks.py:12 send", "socket.py:836 connect", "at the same place for 12s", "7 threads"]
        assert [text for text in [*told, job_page(812)] if text not in page] == []
        assert "load the page again" not in page
        assert page.count('<details class="jobqueue-attempt" open>') == 1

    def test_a_process_that_could_not_answer_is_told(self):
        made = worker(stacks={"answered": False, "places": []}, stacks_at=UtcNowPlus(-3))
        assert "it ran no Python code" in text_of(viewer("release_job").get(page_of(made)))

    @pytest.mark.parametrize("content", ["x", 5, [], {"places": 5}, {"answered": 1, "places": [5, {"stack": 1}]}])
    def test_an_answer_of_another_release_breaks_nothing(self, content):
        made = worker(stacks=content, stacks_at=UtcNow())
        assert "Where its threads are" in text_of(viewer("release_job").get(page_of(made)))

    def test_need_the_permission_to_release_jobs(self):
        made = worker(stacks=ANSWER, stacks_at=UtcNow())
        client = viewer("cancel_job", "retry_job", "view_payload")
        page = text_of(client.get(page_of(made)))
        assert "Ask for stacks" not in page
        assert "shop/tasks.py:12" not in page
        act(client, "ask_stacks", made.pk, path=WORKERS, jobqueue_page="1")
        assert worker_rows.stacks_asked([NAME], using="default") == []
        assert not LogEntry.objects.exists()

    def test_a_worker_that_has_stopped_is_not_asked(self):
        made = worker(stopped_at=UtcNow(), stop_reason="x")
        response = act(viewer("release_job"), "ask_stacks", made.pk, path=WORKERS)
        assert said(response) == "1 was not changed, because its state does not allow it: stopped."

    def test_a_get_asks_nobody(self):
        made = worker()
        root().get(f"{WORKERS}?action=ask_stacks&_selected_action={made.pk}&index=0&jobqueue_page=1")
        assert worker_rows.stacks_asked([NAME], using="default") == []


def test_the_oldest_jobs_of_each_worker_come_first_and_no_more_than_the_limit():
    from jobqueue.maintenance.worker_rows import held_jobs

    mine, others = holds(4, "a"), holds(2, "b")
    found = held_jobs(["a", "b", "c"], limit=3, using="default")
    assert [job.id for job in found["a"]] == mine[:3]
    assert [job.id for job in found["b"]] == others
    assert "c" not in found
    assert now() - Job.objects.get(pk=mine[0]).locked_at < timedelta(minutes=1)


def test_the_memory_and_a_wrong_clock_of_a_worker_stand_in_the_list_and_on_its_page():
    made = worker(rss_bytes=90 * 2**20, clock_ahead_seconds=4.0)
    worker("web-2:5:b/1")
    page = text_of(viewer().get(WORKERS))
    cells = re.findall(r'field-memory" data-title="Memory">(.*?)</td>', page)
    assert [cell.replace("\xa0", " ") for cell in cells] == ["-", "90.0 MB"]
    assert "4s ahead of the database" in page
    assert "90.0\xa0MB" in text_of(root().get(page_of(made)))
