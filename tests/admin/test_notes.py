"""Notes on failures in the admin: on the groups, on the page of a job, in their own list."""

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobqueue.dead_letters import note, notes
from tests.admin.helpers import HOSTILE, Inline, client_of, job_page, person, root, text_of, viewer
from tests.admin.test_redrives import REDRIVES
from tests.dead_letters.test_redrive import dead
from tests.factories import job, make_job

pytestmark = pytest.mark.django_db

NOTES = "/admin/jobqueue/failurenote/"


def page_of(kind):
    return reverse("admin:jobqueue_failurenote_change", args=[kind])


def kind_of_a_failure(**options):
    (job_id,) = dead(**options)
    return job_id, job(job_id).fingerprint


def test_a_secret_in_a_note_is_masked_on_its_page_and_kept_if_the_note_is_left_as_it_is():
    _, kind = kind_of_a_failure()
    note(kind, "password=kept-by-bob-alone\nof bob", by="bob")
    client = client_of(person("change_failurenote"))
    page = text_of(client.get(page_of(kind)))
    assert "password=********\nof bob" in page
    assert "kept-by-bob-alone" not in page
    client.post(page_of(kind), {"note": "password=********\r\nof bob", "_save": "Save"})
    assert [one.text for one in notes()] == ["password=kept-by-bob-alone\nof bob"]


def test_a_note_is_written_changed_and_removed_on_its_page():
    _, kind = kind_of_a_failure()
    client = client_of(person("change_failurenote"))
    page = text_of(client.get(page_of(kind)))
    assert 'name="note"' in page
    assert not Inline(page).found
    assert client.post(page_of(kind), {"note": " ask bob ", "_save": "Save"}).status_code == 302
    assert [(one.fingerprint, one.text, one.by) for one in notes()] == [(kind, "ask bob", "ann")]
    client.post(page_of(kind), {"note": "ask carl", "_save": "Save"})
    assert [one.text for one in notes()] == ["ask carl"]
    assert "ask carl" in text_of(client.get(page_of(kind)))
    client.post(page_of(kind), {"note": "", "_save": "Save"})
    assert notes() == []
    entry = LogEntry.objects.latest("id")
    assert (entry.user.username, entry.object_id) == ("ann", kind)


def test_changing_needs_the_change_permission():
    job_id, kind = kind_of_a_failure()
    note(kind, "ask bob", by="ann")
    client = viewer("view_redrive", "view_failurenote", "retry_job")
    for path in (REDRIVES, job_page(job_id), NOTES, page_of(kind)):
        page = text_of(client.get(path))
        assert "ask bob" in page
        assert 'name="note"' not in page
    for path in (REDRIVES, job_page(job_id)):
        assert page_of(kind) not in text_of(client.get(path))
    assert client.post(page_of(kind), {"note": "x", "_save": "Save"}).status_code == 403
    other = client_of(person("view_job", "view_redrive", name="bob"))
    assert "ask bob" in text_of(other.get(job_page(job_id)))
    assert [other.get(path).status_code for path in (NOTES, page_of(kind))] == [403, 403]
    assert other.post(page_of(kind), {"note": "x", "_save": "Save"}).status_code == 403
    assert [one.text for one in notes()] == ["ask bob"]


def test_those_who_may_write_it_find_its_page_beside_the_group_and_on_the_job():
    job_id, kind = kind_of_a_failure()
    client = viewer("view_redrive", "change_failurenote")
    for path in (REDRIVES, job_page(job_id)):
        assert f'<a href="{page_of(kind)}">Write a note</a>' in text_of(client.get(path))
    note(kind, "ask bob", by="carl")
    assert f'<a href="{page_of(kind)}">ask bob</a>' in text_of(client.get(REDRIVES))
    page = text_of(client.get(job_page(job_id)))
    assert "ask bob" in page
    assert "carl" in page
    assert f'<a href="{page_of(kind)}">Change the note</a>' in page


def test_a_job_that_has_not_failed_has_no_note():
    assert "note on such failures" not in text_of(root().get(job_page(make_job()))).lower()


def test_a_note_that_is_too_long_is_refused_and_nothing_is_written():
    _, kind = kind_of_a_failure()
    note(kind, "before")
    page = text_of(root().post(page_of(kind), {"note": "x" * 2001, "_save": "Save"}))
    assert "at most 2000 characters" in page
    assert [one.text for one in notes()] == ["before"]


@pytest.mark.parametrize("path", ["add/", "0123456789abcdef/delete/"])
def test_notes_are_neither_added_without_a_fingerprint_nor_deleted(path):
    note("0123456789abcdef", "x")
    assert root().post(NOTES + path, {"note": "y", "post": "yes"}).status_code == 403
    assert [one.text for one in notes()] == ["x"]


@pytest.mark.parametrize("address", ["x", "0123456789ABCDEF", "0123456789abcde_0A", "1" * 17, "\uff10" * 16])
def test_an_address_that_is_no_fingerprint_shows_nothing(address):
    assert root().get(f"{NOTES}{address}/change/").status_code in (302, 404)


def test_text_of_others_is_shown_as_text():
    job_id, kind = kind_of_a_failure()
    client = root()
    for hostile in HOSTILE:
        note(kind, hostile, by=hostile)
        for path in (REDRIVES, NOTES, job_page(job_id), page_of(kind)):
            page = text_of(client.get(path))
            assert "<script>alert" not in page
            assert "<img src=x" not in page


def test_notes_whose_jobs_are_gone_are_listed_and_can_be_removed():
    note("0123456789abcdef", "old story")
    client = root()
    assert "old story" in text_of(client.get(NOTES))
    client.post(page_of("0123456789abcdef"), {"note": "", "_save": "Save"})
    assert notes() == []
