"""The list of jobs: pages by keys, tabs, filters and the search."""

import re

import pytest
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.translation import override

from jobqueue import enqueue, enqueue_many
from jobqueue.admin.jobs import filters, finding, search, tabs
from jobqueue.admin.page import readonly
from jobqueue.admin.page.formatting import plain
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, JobTag, LaneEntry, Worker
from jobqueue.models.group import PARENTS_GATE
from jobqueue.runs import arguments
from jobqueue.transitions import fail
from tests.admin.helpers import HOSTILE, JOBS, Inline, client_of, job_page, person, root, sent, text_of, viewer
from tests.app import tasks
from tests.factories import claim_one, job, make_in_state, make_job, make_jobs, set_columns
from tests.marks import finding as mark_finding

pytestmark = pytest.mark.django_db


def ids_of(page):
    return [int(job_id) for job_id in re.findall(r'class="field-id"[^>]*><a href="[^"]*/job/(\d+)/change/', page)]


def link(page, kind):
    """Where a link to another page leads; None if there is none."""
    found = re.search(rf'<a href="([^"]*)" class="jobqueue-to-{kind}"', page)
    return found and JOBS + found[1].replace("&amp;", "&")


def listed(client, data=None):
    return ids_of(text_of(client.get(JOBS, data)))


def walked(client, data=None, kind="next"):
    """The ids of each page, in order, up to the last one."""
    page, found = text_of(client.get(JOBS, data)), []
    for _ in range(100):
        found.append(ids_of(page))
        if (address := link(page, kind)) is None:
            return found, page
        page = text_of(client.get(address))
    raise AssertionError("no end")


@pytest.fixture
def few(monkeypatch):
    """Small pages, and small bounds."""
    monkeypatch.setattr("jobqueue.admin.jobs.job_admin.JobAdmin.list_per_page", 3)


def test_all_rows_are_reached_also_those_beyond_the_count(few, monkeypatch):
    monkeypatch.setattr(readonly, "COUNT_CAP", 5)
    made = list(reversed(make_jobs(10)))
    client = viewer()
    pages, last = walked(client)
    assert [job_id for page in pages for job_id in page] == made
    assert "5+ jobs" in last
    back, first = [], text_of(client.get(link(last, "prev")))
    back.append(ids_of(first))
    while address := link(first, "prev"):
        first = text_of(client.get(address))
        back.append(ids_of(first))
    assert sorted(job_id for page in back for job_id in page) == sorted(made[:9])
    assert link(first, "next")


def test_a_page_has_no_row_twice_while_jobs_are_added(few):
    made = make_jobs(5)
    client = viewer()
    page = text_of(client.get(JOBS))
    make_jobs(4)
    assert ids_of(text_of(client.get(link(page, "next")))) == sorted(made[:2], reverse=True)


def test_links_keep_the_filters_and_the_first_page_has_none_back(few):
    enqueue_many("mail", range(5))
    page = text_of(viewer().get(JOBS, {"queue": "mail", "state": "ready"}))
    assert link(page, "prev") is None
    assert "queue=mail" in link(page, "next")
    assert "state=ready" in link(page, "next")
    assert "cursor=" not in page.partition("jobqueue-tabs")[2].partition("</nav>")[0]


@pytest.mark.parametrize("cursor", ["", "x", "a" * 5000, "\x00", "W10:1:x", "한"])
def test_a_cursor_that_no_page_has_given_is_refused(cursor):
    make_jobs(2)
    response = root().get(JOBS, {"cursor": cursor})
    assert response.status_code == 302
    assert response["Location"].endswith("?e=1")
    assert len(listed(root_again(), {"e": "1"})) == 2


def root_again():
    from django.contrib.auth.models import User

    return client_of(User.objects.get(username="root"))


def test_a_changed_cursor_and_one_of_another_list_are_refused(few):
    make_jobs(5)
    client = root()
    address = link(text_of(client.get(JOBS)), "next")
    assert client.get(address).status_code == 200
    assert client.get(address.replace("cursor=", "cursor=W")).status_code == 302
    assert client.get(address.replace(JOBS, "/admin/jobqueue/worker/")).status_code == 302


def test_the_tabs_have_the_counts_of_their_states():
    for state in ("PROCESSING", "DONE", "DONE", "FAILED", "CANCELED"):
        make_in_state(state)
    make_jobs(3)
    set_columns(make_job("later"), run_at=UtcNowPlus(600))
    set_columns(make_job("later"), run_at=UtcNowPlus(600), attempts=1)
    set_columns(make_job("held"), gate=2)
    page = text_of(viewer().get(JOBS))
    found = dict(re.findall(r">([A-Z][a-z ]+) <span class=\"jobqueue-tab-count\">([\d,+]+)<", page))
    assert found == {
        "All": "11", "Ready": "3", "Scheduled": "2", "Retries": "1", "Running": "1", "Lease expired": "0",
        "Failed": "1", "Held": "1", "Canceled": "1", "Done": "2",
    }  # fmt: skip
    assert re.search(r'aria-current="page">All', page)


def test_the_tabs_count_a_queue_and_nothing_else(monkeypatch):
    enqueue_many("a", range(3))
    enqueue_many("b", range(2))
    client = viewer()
    assert 'All <span class="jobqueue-tab-count">2</span>' in text_of(client.get(JOBS, {"queue": "b"}))
    assert "jobqueue-tab-count" not in text_of(client.get(JOBS, {"task": "x.y"}))


def test_with_many_waiting_jobs_the_tabs_count_by_priority(monkeypatch):
    monkeypatch.setattr(readonly, "COUNT_CAP", 4)
    enqueue_many("a", range(4))
    enqueue_many("b", range(2))
    set_columns(make_job("b"), run_at=UtcNowPlus(600))
    set_columns(make_job("b"), gate=2)
    page = text_of(viewer().get(JOBS))
    assert 'All <span class="jobqueue-tab-count">4+</span>' in page
    assert 'Ready <span class="jobqueue-tab-count">6</span>' in page
    assert 'Scheduled <span class="jobqueue-tab-count">1</span>' in page
    assert ">Retries</a>" in page
    assert 'Held <span class="jobqueue-tab-count">1</span>' in page
    monkeypatch.setattr(tabs, "OF_A_QUEUE", 2)
    assert 'Ready <span class="jobqueue-tab-count">4+</span>' in text_of(root().get(JOBS))


def test_counting_that_takes_too_long_is_left_out(monkeypatch):
    make_jobs(2)
    monkeypatch.setattr(tabs, "SECONDS", 0.0)
    page = text_of(viewer().get(JOBS))
    assert "jobqueue-tab-count" not in page
    assert len(ids_of(page)) == 2


def test_filters_find_their_jobs():
    greet = tasks.greet.enqueue("ann", 1).id
    plain, tagged = enqueue("mail", 1), enqueue("mail", 2)
    JobTag.objects.create(job_id=tagged, tag="vip")
    old = enqueue("mail", 3)
    set_columns(old, created_at=UtcNowPlus(-7200))
    client = viewer()
    assert listed(client, {"task": "tests.app.tasks.greet"}) == [int(greet)]
    assert listed(client, {"task": "greet"}) == [int(greet)]
    assert listed(client, {"tag": "vip"}) == [tagged]
    assert listed(client, {"tag": "vip", "state": "done"}) == []
    assert listed(client, {"tag": "vip", "queue": "mail"}) == [tagged]
    assert sorted(listed(client, {"queue": "mail"})) == [plain, tagged, old]
    assert listed(client, {"queue": "mail", "tag": "other"}) == []


def test_the_filter_of_a_worker_shows_what_it_holds():
    make_jobs(3)
    lease = claim_one("q", worker="web-1:5:aaaa/1.1")
    client = viewer()
    assert listed(client, {"worker": "web-1:5:aaaa/1.1"}) == [lease.job_id]
    page = text_of(client.get(JOBS, {"worker": "nobody"}))
    assert ids_of(page) == []
    assert '<option value="nobody" selected>' in page


def test_the_filter_of_an_error_takes_a_class_or_a_fingerprint():
    tasks.greet.enqueue("ann", 1)
    Job.objects.update(max_attempts=1)
    fail(claim_one("default"), error=ValueError("no"))
    job = Job.objects.get()
    client = viewer()
    assert listed(client, {"error": "ValueError"}) == [job.pk]
    assert listed(client, {"error": job.fingerprint}) == [job.pk]
    assert listed(client, {"error": "KeyError"}) == []


@pytest.mark.parametrize("many", [1, 2, 3, 40, 200])
def test_the_first_job_of_an_age_is_found_between_gaps(many):
    """Whatever ids are missing."""
    made = make_jobs(many)
    for job_id in made[1::3]:
        Job.objects.filter(pk=job_id).delete()
    left = sorted(Job.objects.values_list("pk", flat=True))
    for place in {0, 1, len(left) // 2, len(left) - 1}:
        Job.objects.update(created_at=UtcNowPlus(0))
        Job.objects.filter(pk__in=left[:place]).update(created_at=UtcNowPlus(-7200))
        expected = left[place] if place < len(left) else 0
        assert filters.first_id("1h", using="default") == expected
    Job.objects.update(created_at=UtcNowPlus(-7200))
    assert filters.first_id("1h", using="default") == 0


@mark_finding("O-M12")
def test_a_list_that_has_not_looked_at_all_jobs_says_that_there_may_be_more(monkeypatch):
    for module, name, value in ((readonly, "COUNT_CAP", 5), (finding, "SEARCHED", 4), (finding, "WINDOWS_MAX", 1)):
        monkeypatch.setattr(module, name, value)
    later = make_jobs(3, run_at=UtcNowPlus(600))
    due = make_jobs(3)
    client = viewer()
    assert '<p class="jobqueue-count">3+ jobs</p>' in text_of(client.get(JOBS, {"state": "ready"}))
    monkeypatch.setattr(finding, "SEARCHED", 100)
    page = text_of(client.get(JOBS, {"state": "scheduled"}))
    assert '<p class="jobqueue-count">3 jobs</p>' in page
    assert ids_of(page) == later[::-1]
    assert due


@mark_finding("O-M12")
def test_a_node_that_waits_for_its_parents_is_scheduled_in_the_list_and_on_its_page():
    node = make_job(gate=PARENTS_GATE)
    client = root()
    assert listed(client, {"state": "ready"}) == []
    assert listed(client, {"state": "scheduled"}) == [node]
    page = text_of(client.get(job_page(node)))
    assert "Scheduled" in page or "scheduled" in page
    # Its parents decide when it runs.
    assert "Run now" not in page
    assert "Cancel" in page


def test_where_no_index_serves_the_filter_a_page_looks_at_so_many_jobs_and_goes_on(few, monkeypatch):
    monkeypatch.setattr(finding, "SEARCHED", 10)
    monkeypatch.setattr(finding, "WINDOWS_MAX", 1)
    greet = [int(tasks.greet.enqueue("ann", 1).id) for _ in range(2)]
    enqueue_many("other", range(25))
    client = viewer()
    page = text_of(client.get(JOBS, {"task": "greet"}))
    assert ids_of(page) == []
    assert "Looked at the newest 10 jobs" in page
    pages, last = walked(client, {"task": "greet"})
    assert [job_id for page in pages for job_id in page] == sorted(greet, reverse=True)
    assert len(pages) == 3
    back, first = walked_back(client, last)
    assert back == []
    assert link(first, "next")


def test_a_page_that_is_not_full_looks_at_more_while_there_is_time(few, monkeypatch):
    monkeypatch.setattr(finding, "SEARCHED", 10)
    monkeypatch.setattr(finding, "LOOK_SECONDS", 60.0)
    greet = [int(tasks.greet.enqueue("ann", 1).id) for _ in range(5)]
    enqueue_many("other", range(25))
    client = viewer()
    page = text_of(client.get(JOBS, {"task": "greet"}))
    assert ids_of(page) == greet[:1:-1]
    assert "5+ jobs" in page
    assert [one for page in walked(client, {"task": "greet"})[0] for one in page] == greet[::-1]
    monkeypatch.setattr(finding, "LOOK_SECONDS", 0.0)
    page = text_of(client.get(JOBS, {"task": "greet"}))
    assert ids_of(page) == []
    assert "Looked at the newest 10 jobs" in page
    # The next page is looked for longer: somebody has asked for it.
    monkeypatch.setattr(finding, "FURTHER_SECONDS", 60.0)
    assert ids_of(text_of(client.get(link(page, "next")))) == greet[:1:-1]


@pytest.mark.parametrize("ends_with_key", [True, False])
@pytest.mark.parametrize(
    "state", ["ready", "scheduled", "retrying", "held", "running", "expired", "failed", "canceled", "done"]
)
def test_many_jobs_of_each_state_are_all_found_and_no_others(few, monkeypatch, state, ends_with_key):
    """With more jobs than are read at once, among newer others; also where no index has them by id."""
    monkeypatch.setattr(type(vendor("default")), "indexes_end_with_key", ends_with_key)
    monkeypatch.setattr(readonly, "COUNT_CAP", 4)
    monkeypatch.setattr(finding, "SEARCHED", 5)
    monkeypatch.setattr(finding, "WINDOWS_MAX", 2)
    lease = {"locked_by": "w", "lock_token": b"t" * 16, "locked_at": UtcNowPlus(-9)}
    columns = {
        "ready": {"gate": 0}, "scheduled": {"run_at": UtcNowPlus(600)}, "held": {"gate": 2},
        "running": {"status": 1, "lock_until": UtcNowPlus(600), **lease},
        "expired": {"status": 1, "lock_until": UtcNowPlus(-5), **lease},
        "failed": {"status": 3}, "canceled": {"status": 4}, "done": {"status": 2},
        "retrying": {"run_at": UtcNowPlus(600), "attempts": 1},
    }  # fmt: skip
    wanted = make_jobs(6)
    for job_id in wanted:
        set_columns(job_id, **columns[state])
    for other, changes in columns.items():
        # One that has expired is running, too, and one that is retrying is scheduled.
        if other != state and (state, other) not in (("running", "expired"), ("scheduled", "retrying")):
            for job_id in make_jobs(2):
                set_columns(job_id, **changes)
    found, _last = walked(viewer(), {"state": state})
    assert [job_id for page in found for job_id in page] == wanted[::-1]


def test_held_jobs_are_found_in_more_queues_than_one_statement_asks(few, monkeypatch):
    monkeypatch.setattr(finding, "QUEUES_ASKED", 2)
    wanted = [job_id for number in range(5) for job_id in make_jobs(2, f"q{number}")]
    Job.objects.update(gate=2)
    make_jobs(3, "q4")
    found, _last = walked(viewer(), {"state": "held"})
    assert [job_id for page in found for job_id in page] == wanted[::-1]


def test_held_jobs_are_found_in_more_queues_than_are_looked_at_one_by_one(few, monkeypatch):
    monkeypatch.setattr(search, "QUEUES_SEARCHED", 2)
    wanted = [job_id for number in range(4) for job_id in make_jobs(2, f"q{number}")]
    Job.objects.update(gate=2)
    make_jobs(3, "q3")
    found, _last = walked(viewer(), {"state": "held"})
    assert [job_id for page in found for job_id in page] == wanted[::-1]


def walked_back(client, page):
    found = []
    for _ in range(20):
        if (address := link(page, "prev")) is None:
            return found, page
        page = text_of(client.get(address))
        found += ids_of(page)
    raise AssertionError("no end")


def test_the_jobs_of_a_large_tag_are_read_in_parts(few, monkeypatch):
    monkeypatch.setattr(finding, "TAGGED", 4)
    made = make_jobs(12)
    JobTag.objects.bulk_create(JobTag(job_id=job_id, tag="t") for job_id in made)
    client = viewer()
    assert [one for page in walked(client, {"tag": "t"})[0] for one in page] == sorted(made, reverse=True)
    set_columns(made[0], status=2)
    assert [one for page in walked(client, {"tag": "t", "state": "done"})[0] for one in page] == [made[0]]


@pytest.mark.parametrize("state", ["", "ready", "done"])
def test_a_queue_with_more_jobs_than_are_sorted_is_walked_in_the_order_of_ids(few, monkeypatch, state):
    monkeypatch.setattr(readonly, "COUNT_CAP", 5)
    made = make_jobs(8)
    if state == "done":
        Job.objects.update(status=2)
    data = {"queue": "q"} | ({"state": state} if state else {})
    assert [one for page in walked(viewer(), data)[0] for one in page] == sorted(made, reverse=True)


def test_the_search_finds_keys_tags_and_tasks():
    client = viewer()
    by_key, ordered, tagged = enqueue("a", 1, dedupe_key="k"), enqueue("a", 2, ordering_key="user-7"), enqueue("b", 3)
    JobTag.objects.create(job_id=tagged, tag="k")
    greet = int(tasks.greet.enqueue("ann", 1).id)
    assert LaneEntry.objects.exists()
    assert listed(client, {"q": "k"}) == [tagged, by_key]
    assert listed(client, {"q": "k", "queue": "a"}) == [by_key]
    assert listed(client, {"q": " user-7 "}) == [ordered]
    for name in ("greet", "app.greet", "tests.app.tasks.greet"):
        assert listed(client, {"q": name}) == [greet]
    assert listed(client, {"q": "k", "state": "done"}) == []


def test_a_form_with_empty_fields_has_a_short_address():
    response = viewer().get(JOBS, {"q": "", "queue": "", "task": "", "state": "failed", "age": "1h"})
    assert response["Location"] == f"{JOBS}?state=failed&age=1h"
    assert root().get(JOBS, {"q": ""})["Location"] == JOBS


@pytest.mark.parametrize("query", ["age=2y", "age=1h%00", "cause=x", "state="])
def test_an_unknown_choice_is_refused(query):
    make_job()
    assert root().get(f"{JOBS}?{query}").status_code == 302


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_of_filters_stay_text(text):
    job_id = enqueue("q", 1)
    JobTag.objects.create(job_id=job_id, tag=text)
    set_columns(job_id, queue=text)
    client = viewer()
    for name in ("queue", "task", "tag", "error", "worker", "fingerprint", "q"):
        page = text_of(client.get(JOBS, {name: text}))
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert Inline(page).found == []
    assert listed(client, {"tag": text}) == [job_id]


@pytest.mark.parametrize("name", ["queue", "task", "tag", "error", "worker", "fingerprint"])
def test_a_value_with_nul_finds_nothing(name):
    make_job()
    assert listed(viewer(), {name: "a\x00b"}) == []


@pytest.mark.parametrize("query", ["age=15m", "worker=a%00b", "queue=a%00b", "tag=a%00b", "q=nothing", "error=Nothing"])
def test_a_filter_that_nothing_can_meet_finds_nothing_beside_others(query):
    set_columns(make_job(), created_at=UtcNowPlus(-7200))
    client = viewer()
    for more in ("", "&task=x.y", "&state=ready", "&state=held", "&state=done&cause=data", "&state=running&task=x.y"):
        assert ids_of(text_of(client.get(f"{JOBS}?{query}{more}"))) == [], more


def test_without_the_permission_nobody_sees_the_list():
    assert client_of(person("view_worker")).get(JOBS).status_code == 403


def test_choices_come_from_small_tables():
    Worker.objects.create(
        name="web-1:5:aaaa/1", host="h", pid=1, supervisor_pid=1, boot_id="b", queues="*", concurrency=1, version="1"
    )
    JobTag.objects.create(job_id=enqueue("mail", 1), tag="vip")
    found = {control.name: control for control in filters.controls({}, "default")}
    assert ("mail", "mail") in found["queue"].choices
    assert found["tag"].choices == [("vip", "vip")]
    assert found["worker"].choices == [("web-1:5:aaaa/1", "web-1:5")]
    assert "tests.app.tasks.greet" in dict(found["task"].choices)
    assert "fingerprint" not in found


def test_where_a_list_of_choices_would_leave_some_out_the_name_is_written(monkeypatch):
    monkeypatch.setattr(filters, "CHOICES_MAX", 2)
    for queue in "abc":
        make_job(queue)
    found = {control.name: control for control in filters.controls({"queue": "c"}, "default")}
    assert [name for name, _ in found["queue"].choices] == ["a", "b"]
    assert found["queue"].written
    assert not found["worker"].written
    page = text_of(viewer().get(JOBS, {"queue": "c"}))
    assert '<input type="text" name="queue"' in page
    assert ids_of(page) == [Job.objects.get(queue="c").pk]


def test_ended_jobs_show_how_long_they_ran_and_running_ones_their_lease():
    make_in_state("DONE")
    Job.objects.update(last_started_at=UtcNowPlus(-10), finished_at=UtcNowPlus(-7))
    running = claim_one("r") if enqueue("r", 1) else None
    page = text_of(viewer().get(JOBS))
    cells = re.findall(r'field-duration" data-title="Duration, lease">(.*?)</td>', page)
    assert cells[1] == "3s"
    assert " left</span>" in cells[0]
    assert running is not None


FILTERS = {"queue": "q", "task": "tests.app.tasks.greet", "tag": "t", "error": "ValueError", "fingerprint": "a" * 16,
           "cause": "data", "worker": "w", "age": "1h"}  # fmt: skip
STATES = ("", "ready", "scheduled", "retrying", "running", "expired", "failed", "held", "canceled", "done")


@pytest.mark.parametrize("state", STATES)
def test_each_filter_in_each_state_costs_the_same_up_to_the_cap_and_little_more_beyond_it(state):
    client, counts = viewer(), {}
    # The first request of all fills caches.
    client.get(JOBS)
    for many in (10, readonly.COUNT_CAP - 20, 600):
        made = enqueue_many("q", range(many))
        JobTag.objects.bulk_create(JobTag(job_id=job_id, tag="t") for job_id in made)
        for name, value in (FILTERS | {"": ""}).items():
            data = {key: given for key, given in ((name, value), ("state", state)) if given}
            with CaptureQueriesContext(connection) as captured:
                text_of(client.get(JOBS, data))
            statements = sent(captured)
            for statement in statements:
                if "job_queue" in statement:
                    assert "OFFSET" not in statement.upper()
                    assert "DISTINCT" not in statement.upper()
                    assert "LIMIT" in statement.upper(), statement
            counts.setdefault(name, []).append(len(statements))
    assert all(few == below <= 24 and beyond <= 32 for few, below, beyond in counts.values()), counts


def test_job_pages_are_linked_from_the_list():
    job_id = make_job()
    assert job_page(job_id) in text_of(viewer().get(JOBS))
    assert search.QUEUES_SEARCHED == 1000


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("text", ["mail.send", "{0} {x} <b>\"&'", "a\u202eb"])
def test_the_checkbox_of_a_row_is_that_of_django(language, text):
    job = Job.objects.get(pk=make_job(task=text))
    of_jobs = admin.site._registry[Job]
    with override(language):
        theirs = admin.ModelAdmin.action_checkbox(of_jobs, readonly._Named(job.pk, plain(job)))
        assert of_jobs.action_checkbox(job) == theirs


class TestByArgument:
    def greeting(self, *args):
        return int(tasks.greet.enqueue(*args).id)

    def ids(self, response):
        return [one.pk for one in response.context["cl"].result_list]

    def test_jobs_are_found_and_the_page_says_how_far_it_looked(self):
        job_id, _ = self.greeting("Zelda", 1), make_jobs(3)
        response = viewer("view_payload").get(JOBS, {"arg": "Zelda"})
        assert self.ids(response) == [job_id]
        page = text_of(response)
        assert "Looked through 4 jobs; no older one is left." in page
        assert "A tag finds its jobs at once" in page

    def test_it_goes_on_from_where_it_stopped(self, monkeypatch):
        monkeypatch.setattr(arguments, "SLICE", 2)
        monkeypatch.setattr(arguments, "ROWS_MAX", 2)
        job_id, _ = self.greeting("Zelda", 1), make_jobs(3)
        client = viewer("view_payload")
        first = client.get(JOBS, {"arg": "Zelda"})
        assert self.ids(first) == []
        assert "Looked through the newest 2 jobs, back to 20" in text_of(first)
        second = client.get(link(text_of(first), "next"))
        assert self.ids(second) == [job_id]
        assert "Looked through 2 " in text_of(second)

    def test_secrets_are_not_found(self):
        self.greeting({"password": "hunter2"}, 1)
        assert self.ids(viewer("view_payload").get(JOBS, {"arg": "hunter2"})) == []

    def test_without_view_payload_there_is_no_field_and_the_search_is_refused(self):
        self.greeting("Zelda", 1)
        client = viewer()
        assert 'name="arg"' not in text_of(client.get(JOBS))
        assert client.get(JOBS, {"arg": "Zelda"}).status_code == 403

    def test_actions_change_the_chosen_rows_and_never_all_that_match(self):
        job_id, other = self.greeting("Zelda", 1), self.greeting("Link", 1)
        client = viewer("view_payload", "cancel_job")
        data = {"action": "cancel", "_selected_action": [job_id], "index": 0}
        assert client.post(f"{JOBS}?arg=Zelda", data | {"select_across": 1}).status_code == 400
        client.post(f"{JOBS}?arg=Zelda", data)
        assert (job(job_id).status, job(other).status) == (Job.Status.CANCELED, Job.Status.READY)

    def test_a_bulk_action_refuses_it(self):
        page = text_of(
            viewer("view_payload", "cancel_job", "view_auditevent").get(
                reverse("admin:jobqueue_auditevent_new"), {"arg": "Zelda"}
            )
        )
        assert "Only jobs of the list can be chosen by an argument" in page
