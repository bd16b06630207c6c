"""The page that starts a redrive: a form, a preview that writes nothing, and a button that starts it."""

from contextlib import contextmanager

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.utils import translation

from jobqueue.admin.dead_letters import redrive_page
from jobqueue.dead_letters import redrives
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown, StatementTimeout
from jobqueue.models import Redrive
from tests.admin.helpers import HOSTILE, JOBS, Inline, act, client_of, job_page, person, root, text_of, viewer
from tests.dead_letters.test_redrive import dead
from tests.factories import job, make_in_state, set_columns, state
from tests.marks import finding

pytestmark = pytest.mark.django_db

REDRIVES = "/admin/jobqueue/redrive/"
NEW = REDRIVES + "new/"
START = {"start": "1", "canary": "10"}


def allowed(*more):
    """A browser of somebody who may start redrives and see them."""
    return viewer("redrive_jobs", "view_redrive", *more)


@contextmanager
def over_at_once(seconds, *, using):
    raise StatementTimeout("it took too long")
    yield


def test_the_form_is_empty_at_first_and_suggests_a_canary():
    dead(2)
    page = text_of(allowed().get(NEW))
    assert 'name="canary" value="10"' in page
    assert "Preview:" not in page
    assert 'name="start"' not in page
    assert not Inline(page).found


def test_a_preview_shows_how_many_which_kinds_the_first_ids_and_the_order_and_writes_nothing():
    ids = dead(30, queue="mail", task="app.tasks.pay") + dead(3, queue="mail", error=ConnectionError("x"))
    other = dead(queue="web")
    client = allowed()
    page = text_of(client.post(NEW, {"queue": "mail", "canary": "10", "rate": "2/s", "limit": "25"}))
    assert "33 dead letters match." in page
    assert "Only the 25 oldest of them are retried, by the limit." in page
    assert "The 10 oldest jobs are retried first, as a canary." in page
    assert "After that, the other 15 jobs are retried, oldest first." in page
    assert "At most 2/s become due, so it takes at least 12s." in page
    assert [job(ids[0]).fingerprint in page, job(ids[-1]).fingerprint in page] == [True, True]
    assert [job_page(job_id) in page for job_id in (ids[0], ids[9], ids[10], *other)] == [True, True, False, False]
    assert "Start: retry 25 jobs" in page
    assert "No worker is running" in page
    assert not Inline(page).found
    assert redrives() == []
    assert not LogEntry.objects.exists()


def test_a_link_with_a_filter_shows_its_preview():
    ids = dead(2)
    page = text_of(allowed().get(NEW, {"fingerprint": job(ids[0]).fingerprint}))
    assert "2 dead letters match." in page
    assert "Start: retry 2 jobs" in page


def test_the_button_records_what_the_preview_has_shown():
    ids = dead(3, queue="mail")
    client = allowed()
    shown = text_of(client.post(NEW, {"queue": "mail", "canary": "2", "rate": "50/s", "limit": "3"}))
    tags = Inline(shown).tags
    hidden = {names["name"]: names["value"] for tag, names in tags if tag == "input" and names.get("type") == "hidden"}
    response = client.post(NEW, hidden | {"start": "1"})
    (run,) = redrives()
    assert (run.filters, run.canary, run.per_second, run.limit) == ({"queue": "mail"}, 2, 50.0, 3)
    assert (response.status_code, response["Location"]) == (302, f"{REDRIVES}{run.id}/change/")
    assert "was started" in text_of(client.get(response["Location"]))
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.content_type.model, entry.user.username) == (str(run.id), "redrive", "ann")
    assert {state(job_id) for job_id in ids} == {"FAILED"}


def test_jobs_that_were_chosen_by_their_ids_have_it_in_their_history():
    ids = dead(2)
    allowed().post(NEW, START | {"job_ids": f"{ids[0]}, {ids[1]}\n", "canary": ""})
    (run,) = redrives()
    assert (run.filters, run.canary) == ({"job_ids": ids}, 0)
    told = LogEntry.objects.filter(content_type__model="job").values_list("object_id", "change_message")
    assert sorted(told) == [(str(job_id), f"redrive {run.id}") for job_id in ids]


def test_a_user_who_may_not_see_redrives_returns_to_the_jobs():
    dead()
    response = viewer("redrive_jobs").post(NEW, START | {"queue": "q"})
    assert (response.status_code, response["Location"]) == (302, JOBS)
    assert len(redrives()) == 1


@pytest.mark.parametrize("missing", ["redrive_jobs", "view_job"])
def test_without_one_of_its_permissions_the_page_is_refused_and_no_link_leads_to_it(missing):
    (job_id,) = dead()
    client = client_of(person(*{"redrive_jobs", "view_job", "view_redrive", "retry_job"} - {missing}))
    assert client.get(NEW).status_code == 403
    assert client.post(NEW, {"queue": "q"}).status_code == 403
    assert client.post(NEW, START | {"queue": "q"}).status_code == 403
    assert NEW not in text_of(client.get(REDRIVES))
    act(client, "redrive", job_id)
    assert redrives() == []


def test_an_anonymous_request_is_asked_to_log_in():
    assert client_of(None).post(NEW, START | {"everything": "on"}).status_code == 302
    assert redrives() == []


def test_a_post_of_another_site_is_refused():
    dead()
    assert root(enforce_csrf_checks=True).post(NEW, START | {"queue": "q"}).status_code == 403
    assert redrives() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Choose a filter, or tick"),
        ({"everything": "on", "queue": "q"}, "contradict"),
        ({"fingerprint": "xyz"}, "16 hexadecimal digits"),
        ({"queue": "a,b"}, "may not start with"),
        ({"cause": "no such"}, "Select a valid choice"),
        ({"cause": "expired"}, "Select a valid choice"),
        ({"job_ids": "1 two"}, "A job id is a number above 0."),
        ({"job_ids": "\uff11"}, "A job id is a number above 0."),
        ({"job_ids": "0"}, "A job id is a number above 0."),
        ({"job_ids": "9" * 30}, "A job id is a number above 0."),
        ({"queue": "q", "rate": "fast"}, "This is not a rate."),
        ({"queue": "q", "canary": "-1"}, "greater than or equal to 0"),
        ({"queue": "q", "canary": "1001"}, "less than or equal to 1000"),
        ({"queue": "q", "limit": "0"}, "greater than or equal to 1"),
        ({"queue": "\x00"}, "Null characters are not allowed."),
    ],
)
def test_wrong_values_are_named_and_nothing_is_written(given, said):
    dead()
    page = text_of(allowed().post(NEW, START | given))
    assert said in page
    assert "Nothing was written" in page
    assert 'name="start"' not in page
    assert redrives() == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OutcomeUnknown("the connection broke"), "Whether it was started is unknown"),
        (DatabaseBusy("busy"), "Nothing was started; try again later."),
        (OperationalError("gone"), "Nothing was started; try again later."),
    ],
)
def test_a_database_that_refuses_the_write_is_no_error_page(monkeypatch, error, said):
    dead()
    client, real = allowed(), redrive_page.redrive

    def refuse(**given):
        if given.get("dry_run"):
            return real(**given)
        raise error

    monkeypatch.setattr(redrive_page, "redrive", refuse)
    assert said in text_of(client.post(NEW, START | {"queue": "q"}))
    assert not LogEntry.objects.exists()


def test_everything_is_asked_for_before_it_is_started():
    dead(2)
    client = allowed()
    page = text_of(client.post(NEW, {"everything": "on", "canary": "0"}))
    assert "Yes, retry all dead letters of all queues: 2 jobs." in page
    again = text_of(client.post(NEW, {"everything": "on", "canary": "0", "start": "1"}))
    assert "Nothing was written: tick the question" in again
    assert redrives() == []
    client.post(NEW, {"everything": "True", "canary": "0", "start": "1", "confirm": "yes"})
    (run,) = redrives()
    assert (run.filters, run.matched) == ({}, 2)


def test_nothing_that_matches_can_not_be_started():
    page = text_of(allowed().post(NEW, {"queue": "q", "canary": "10"}))
    assert "0 dead letters match." in page
    assert 'name="start"' not in page


def test_groups_and_the_page_of_redrives_lead_to_the_form():
    ids = dead(2)
    page = text_of(allowed().get(REDRIVES))
    assert f'<a href="{NEW}?fingerprint={job(ids[0]).fingerprint}">' in page
    assert f'href="{NEW}"' in page


def test_dead_letters_chosen_in_the_list_fill_the_form_and_lead_to_those_like_them():
    ids, waiting = dead(3), make_in_state("CANCELED")
    page = text_of(act(viewer("redrive_jobs"), "redrive", ids[0], ids[1], waiting))
    assert "2 dead letters match." in page
    assert f">\n{ids[0]} {ids[1]}</textarea>" in page
    assert f'<a href="{NEW}?fingerprint={job(ids[0]).fingerprint}">' in page
    assert redrives() == []


def test_without_a_dead_letter_among_the_chosen_rows_the_list_says_so():
    response = act(viewer("redrive_jobs"), "redrive", make_in_state("CANCELED"), follow=True)
    assert response.status_code == 302


def test_names_of_others_are_shown_as_text():
    (job_id,) = dead()
    client = root()
    for hostile in HOSTILE:
        set_columns(job_id, task=hostile)
        page = text_of(client.post(NEW, {"task": hostile, "canary": "1"}))
        assert "1 dead letter matches." in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page


def test_the_page_is_korean(settings):
    settings.LANGUAGE_CODE = "ko"
    dead(12)
    with translation.override("ko"):
        page = text_of(root().post(NEW, {"queue": "q", "canary": "10", "rate": "1/s"}))
    for text in ("데드 레터", "카나리아", "미리 보기", "시작: 작업 12개 재시도"):
        assert text in page, text
    for text in ("dead letters", "canary.", "Preview", "retried first"):
        assert text not in page, text
    assert Redrive.objects.count() == 0


@finding("O-M14")
def test_a_preview_of_very_many_counts_for_a_second_and_groups_the_newest(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.dead_letters.redrive_page.GROUPED_MAX", 2, raising=False)
    old = [make_in_state("FAILED", queue="old") for _ in range(3)]
    for _ in range(2):
        make_in_state("FAILED", queue="new")
    client = viewer("redrive_jobs")
    page = text_of(client.get(NEW, {"everything": "on"}))
    assert "5 dead letters match." in page
    assert "Only the newest 2 dead letters are counted." in page
    # The newest two have other queues: it can be started all the same.
    page = text_of(client.get(NEW, {"queue": "old"}))
    assert "3 dead letters match." in page
    assert "Start: retry 3 jobs" in page
    assert job_page(old[0]) in page

    monkeypatch.setattr("jobqueue.dead_letters.listing.time_limit", over_at_once)
    page = text_of(client.get(NEW, {"everything": "on", "canary": "2"}))
    assert "So many dead letters match that counting them took too long." in page
    assert "After that, the others are retried, oldest first." in page
    assert "Start: retry all that match" in page
    assert "Yes, retry all dead letters of all queues." in page
    page = text_of(client.get(NEW, {"everything": "on", "canary": "0", "limit": "4"}))
    assert "Only the 4 oldest of them are retried, by the limit." in page
    assert "Start: retry 4 jobs" in page
    page = text_of(client.get(NEW, {"everything": "on", "canary": "0"}))
    assert "All of them are retried, oldest first." in page
