"""The filters of the list of jobs on the page for all jobs that match: exact, or refused with what to do."""

import re

import pytest

from jobqueue import enqueue
from jobqueue.admin.jobs import bulk_filters, search
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import AuditEvent, JobTag
from jobqueue.runs.bulk_steps import step
from jobqueue.transitions import claim, fail
from tests.admin.helpers import HOSTILE, JOBS, Inline, root, text_of, viewer
from tests.factories import job, make_in_state, make_job, make_jobs, set_columns, state

pytestmark = pytest.mark.django_db
NEW = "/admin/jobqueue/auditevent/new/"


def failed(error, queue="q", task=None):
    make_job(queue, max_attempts=1, task=task)
    (lease,) = claim(queue, worker="w")
    fail(lease, error=error)
    return lease.job_id


def boom(number):
    """An error whose place in the code has a fingerprint of its own."""
    scope = {}
    exec(compile(f"def place{number}():\n    raise ValueError('no {number}')", f"file{number}.py", "exec"), scope)
    try:
        scope[f"place{number}"]()
    except ValueError as error:
        return error


def started(client, query, verb, **data):
    """Start what the page has shown for an address; the filters that were recorded."""
    page = text_of(client.get(f"{NEW}?{query}&verb={verb}"))
    fields = dict(re.findall(r'<input type="hidden" name="(shown|until_id|exact)" value="([^"]*)">', page))
    fields = {name: value.replace("&amp;", "&") for name, value in fields.items()}
    response = client.post(f"{NEW}?{query}", {"verb": verb, "start": "x", **fields, **data})
    assert response.status_code == 302, text_of(response)
    return AuditEvent.objects.order_by("-pk").first().filters


def refused(client, query, verb="cancel"):
    """What the page says; nothing can be started."""
    page = text_of(client.get(f"{NEW}?{query}&verb={verb}"))
    assert 'name="start"' not in page
    assert client.post(f"{NEW}?{query}", {"verb": verb, "start": "x"}).status_code == 200
    assert not AuditEvent.objects.exists()
    (said,) = re.findall(r'<p class="errornote">(.*?)<a', page, re.S)
    return said


@pytest.mark.parametrize("query", ["error=ValueError", "age=1h", "q=vip", "q=vip&age=24h&state=ready"])
def test_the_list_links_to_the_page_with_each_filter(query):
    failed(boom(1))
    JobTag.objects.create(job_id=make_job(), tag="vip")
    page = text_of(viewer("cancel_job").get(f"{JOBS}?{query}"))
    (address,) = re.findall(rf'href="({re.escape(NEW)}\?[^"]*)"', page)
    assert {*address.partition("?")[2].split("&amp;")} == {*query.split("&")}


class TestError:
    def test_its_failures_are_those_of_the_list(self):
        ids = [failed(boom(1)), failed(boom(2))]
        other = failed(KeyError("x"))
        client = root()
        found = started(client, "error=ValueError", "retry")
        assert {*found} == {"fingerprint"}
        assert {*found["fingerprint"].split(",")} == {job(job_id).fingerprint for job_id in ids}
        step(using="default")
        assert [state(job_id) for job_id in (*ids, other)] == ["READY", "READY", "FAILED"]

    def test_a_failure_of_a_new_kind_after_the_preview_is_left_alone(self):
        shown, client = failed(boom(1)), root()
        page = text_of(client.get(f"{NEW}?error=ValueError&verb=retry"))
        exact = re.search(r'name="exact" value="([^"]*)"', page)[1]
        failed(boom(2))
        client.post(f"{NEW}?error=ValueError", {"verb": "retry", "start": "x", "exact": exact})
        assert AuditEvent.objects.get().filters == {"fingerprint": job(shown).fingerprint}

    def test_a_fingerprint_is_one(self):
        mark = job(failed(boom(1))).fingerprint
        failed(boom(2))
        assert started(root(), f"error={mark}", "retry") == {"fingerprint": mark}

    def test_an_error_that_no_late_failure_has_is_refused(self):
        failed(boom(1))
        assert "None of the newest 1,000 failures has the error KeyError." in refused(root(), "error=KeyError")

    def test_an_error_with_too_many_fingerprints_is_refused(self, monkeypatch):
        monkeypatch.setattr(bulk_filters, "FINGERPRINTS_MAX", 1)
        failed(boom(1))
        failed(boom(2))
        assert "has 2 fingerprints, too many for one action" in refused(root(), "error=ValueError")


class TestAge:
    def test_it_means_the_jobs_that_were_added_in_that_time_when_the_page_was_shown(self):
        old, young = make_job(), make_job()
        set_columns(old, created_at=UtcNowPlus(-7200))
        client = root()
        assert started(client, "age=1h&state=ready", "cancel") == {"state": "ready", "from_id": str(young)}
        step(using="default")
        assert [state(old), state(young)] == ["READY", "CANCELED"]

    def test_without_such_a_job_it_is_refused(self):
        set_columns(make_job(), created_at=UtcNowPlus(-7200))
        assert "No job was added in that time." in refused(root(), "age=1h")

    def test_an_unknown_one_is_refused(self):
        make_job()
        assert "No age is called 5y." in refused(root(), "age=5y")


class TestSearch:
    def test_a_tag_means_all_of_its_jobs(self, monkeypatch):
        monkeypatch.setattr(search, "FOUND_MAX", 2)
        for job_id in make_jobs(3):
            JobTag.objects.create(job_id=job_id, tag="vip")
        assert started(root(), "q=vip", "cancel") == {"tag": "vip"}

    def test_an_id_means_that_job(self):
        job_id = make_jobs(2)[0]
        assert started(root(), f"q={job_id}", "cancel") == {"job_ids": str(job_id)}

    def test_a_key_means_the_jobs_that_have_it_now(self):
        job_id = enqueue("mail", 1, dedupe_key="order-7")
        enqueue("mail", 2)
        client = root()
        assert started(client, "q=order-7&queue=mail", "cancel") == {"queue": "mail", "job_ids": str(job_id)}
        step(using="default")
        assert state(job_id) == "CANCELED"

    def test_an_ordering_key_means_its_jobs_that_have_not_ended(self):
        ids = [enqueue("mail", n, ordering_key="customer-5") for n in range(3)]
        found = started(root(), "q=customer-5", "cancel")["job_ids"]
        assert sorted(map(int, found.split(","))) == sorted(ids)

    def test_a_task_means_the_task(self):
        make_job("mail", task="shop.mail.tasks.send")
        assert started(root(), "q=shop.mail.tasks.send", "cancel") == {"task": "shop.mail.tasks.send"}

    def test_the_name_of_several_tasks_is_refused(self, monkeypatch):
        names = ["shop.mail.tasks.send", "shop.sms.tasks.send"]
        for module in (search, bulk_filters):
            monkeypatch.setattr(module.registry, "names", lambda: (names, []))
        make_job("mail", task=names[0])
        for query in ("q=send", "task=send"):
            said = refused(root() if query == "q=send" else again(), query)
            assert "Several tasks are called send: shop.mail.tasks.send, shop.sms.tasks.send. Choose one" in said

    def test_what_finds_nothing_is_refused(self):
        make_job()
        assert "The search finds no job." in refused(root(), "q=nothing")

    def test_more_jobs_of_a_key_than_are_read_are_refused(self, monkeypatch):
        monkeypatch.setattr(search, "FOUND_MAX", 2)
        for n in range(3):
            enqueue("mail", n, ordering_key="customer-5")
        assert "The search stopped at 2 jobs" in refused(root(), "q=customer-5")

    def test_a_search_that_other_filters_exclude_is_refused(self):
        JobTag.objects.create(job_id=make_job(), tag="vip")
        assert "exclude each other" in refused(root(), "q=vip&tag=other")

    def test_a_search_with_nul_is_refused_and_does_not_mean_all_jobs(self):
        make_job()
        assert "The search finds no job." in refused(root(), "q=%00x&queue=q")


def again():
    from django.contrib.auth.models import User

    from tests.admin.helpers import client_of

    return client_of(User.objects.get(username="root"))


def test_the_page_shows_what_was_chosen_and_what_that_means():
    mark = job(failed(boom(1))).fingerprint
    page = text_of(root().get(f"{NEW}?error=ValueError&age=24h&verb=retry"))
    assert "<dt>error</dt><dd>ValueError</dd>" in page
    assert "<dt>added in</dt><dd>the last 24 hours</dd>" in page
    assert f"<dd>{mark}</dd>" in page


@pytest.mark.parametrize("exact", ["", "x", "payload__contains=1", "job_ids=1,x", "queue=a&queue=b", "state=%00"])
def test_filters_that_no_page_has_sent_start_nothing_or_what_the_address_says(exact):
    make_in_state("FAILED")
    client = root()
    response = client.post(f"{NEW}?queue=q", {"verb": "retry", "start": "x", "exact": exact})
    assert response.status_code in (200, 302)
    assert [event.filters for event in AuditEvent.objects.all()] in ([], [{"queue": "q"}], [{"queue": "b"}])


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", ["q", "error", "age", "task"])
def test_hostile_values_are_text(name, hostile):
    make_job()
    page = text_of(root().get(NEW, {name: hostile, "verb": "cancel"}))
    assert not Inline(page).found
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
