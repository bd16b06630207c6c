"""One verb for all jobs that match the filters of the list: preview, confirmation, permission, progress, stop."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError

from jobqueue.models import AuditEvent, Job
from jobqueue.runs.bulk_steps import step
from tests.admin.helpers import HOSTILE, JOBS, Inline, act, client_of, person, root, text_of, viewer
from tests.factories import make_in_state, make_job, state

pytestmark = pytest.mark.django_db

AUDIT = "/admin/jobqueue/auditevent/"
NEW = f"{AUDIT}new/"
FAILED = f"{NEW}?state=failed&queue=q"


def start(client, address=FAILED, verb="retry", follow=False, **data):
    """Start what the page of `address` has shown."""
    page = text_of(client.get(f"{address}{'&' if '?' in address else '?'}verb={verb}"))
    fields = dict(re.findall(r'<input type="hidden" name="(shown|until_id)" value="(\d*)">', page))
    return client.post(address, {"verb": verb, "start": "x", **fields, **data}, follow=follow)


def test_the_list_links_to_the_page_with_its_filters_for_those_who_may_use_it():
    make_job()
    page = text_of(viewer("cancel_job").get(f"{JOBS}?queue=q&state=ready"))
    assert f'href="{NEW}?state=ready&amp;queue=q"' in page
    assert NEW not in text_of(client_of(person("view_job", name="bob")).get(JOBS))


def test_the_preview_shows_filters_count_and_the_oldest_jobs_and_writes_nothing():
    ids = [make_in_state("FAILED") for _ in range(12)]
    page = text_of(viewer("retry_job", "discard_job").get(FAILED))
    assert "12 jobs match and can be changed." in page
    assert [f"/job/{job_id}/change/" in page for job_id in ids] == [True] * 10 + [False] * 2
    assert "Retry 12 jobs" in page
    assert ["verb=retry" in page, "verb=discard" in page, "verb=cancel" in page] == [True, True, False]
    assert not Inline(page).found
    assert not AuditEvent.objects.exists()


def test_starting_records_who_what_and_why_and_workers_do_it():
    ids, client = [make_in_state("FAILED") for _ in range(3)], viewer("retry_job", "view_auditevent")
    response = start(client, reason="the network is back")
    event = AuditEvent.objects.get()
    assert response["Location"] == f"{AUDIT}{event.pk}/change/"
    assert (event.user_name, event.program, event.verb, event.matched) == ("ann", "admin", "retry", 3)
    assert (event.filters, event.reason) == ({"state": "failed", "queue": "q"}, "the network is back")
    assert {state(job_id) for job_id in ids} == {"FAILED"}
    step(using="default")
    assert {state(job_id) for job_id in ids} == {"READY"}
    page = text_of(client.get(f"{AUDIT}{event.pk}/change/"))
    assert "3 / 3" in page
    assert "the network is back" in page
    assert LogEntry.objects.get().change_message == "retry"


@pytest.mark.parametrize("verb", ["retry", "cancel", "discard", "release", "prune"])
def test_each_verb_needs_its_own_permission(verb):
    own = {"prune": "prune_jobs"}.get(verb, f"{verb}_job")
    all_of_them = {"retry_job", "cancel_job", "discard_job", "release_job", "prune_jobs"}
    client = viewer(*(all_of_them - {own}))
    address = f"{NEW}?queue=q"
    assert client.post(address, {"verb": verb, "start": "x"}).status_code == 403
    assert f"verb={verb}" not in text_of(client.get(address))
    assert client_of(person("view_job", name="bob")).get(address).status_code == 403
    assert client_of(person(own, name="eve")).get(address).status_code == 403
    assert client_of(None).post(address, {"verb": verb}).status_code == 302
    assert not AuditEvent.objects.exists()


def test_above_a_thousand_the_number_is_typed(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.audit.bulk_page.BUTTON_MAX", 2)
    for _ in range(3):
        make_in_state("FAILED")
    client = viewer("retry_job")
    assert "Type 3 to confirm:" in text_of(client.get(FAILED))
    for typed in ("", "2", "yes"):
        assert "Nothing was written: type what" in text_of(start(client, typed=typed))
    assert not AuditEvent.objects.exists()
    assert start(client, typed=" 3 ").status_code == 302
    assert AuditEvent.objects.count() == 1


def test_ten_thousand_or_more_are_not_counted_further(monkeypatch):
    for module in ("runs.walking", "admin.audit.bulk_page"):
        monkeypatch.setattr(f"jobqueue.{module}.MATCHED_MAX", 2)
    for _ in range(3):
        make_in_state("FAILED")
    page = text_of(viewer("retry_job").get(FAILED))
    assert "2+ jobs match" in page
    # They need not be the oldest.
    assert "Some of them" in page
    assert len(re.findall(r"/job/\d+/change/", page)) == 2


def test_a_count_that_takes_too_long_is_left_out_and_the_verb_is_typed(monkeypatch):
    make_in_state("FAILED")
    monkeypatch.setattr("jobqueue.runs.walking._counted", lambda *args: (None, []))
    client = viewer("retry_job")
    page = text_of(client.get(FAILED))
    assert "Counting took too long" in page
    assert "Type retry to confirm:" in page
    assert start(client).status_code == 200
    assert start(client, typed="Retry").status_code == 302


def test_more_jobs_than_the_page_has_shown_are_asked_for_again():
    for _ in range(12):
        make_in_state("FAILED")
    client = viewer("retry_job")
    assert "meanwhile more jobs match" in text_of(start(client, shown="1"))
    assert not AuditEvent.objects.exists()


def test_jobs_added_after_the_preview_are_not_touched():
    shown, client = make_in_state("FAILED"), viewer("retry_job")
    late = []

    def later(**data):
        page = text_of(client.get(FAILED))
        until = re.search(r'name="until_id" value="(\d+)"', page)[1]
        late.append(make_in_state("FAILED"))
        return client.post(FAILED, {"verb": "retry", "start": "x", "shown": "1", "until_id": until, **data})

    assert later().status_code == 302
    step(using="default")
    assert [state(shown), state(late[0])] == ["READY", "FAILED"]


def test_without_a_filter_all_jobs_must_be_meant_and_the_number_typed():
    make_in_state("FAILED")
    client = viewer("retry_job")
    assert "Choose a filter first." in text_of(client.get(NEW))
    assert "choose a filter first" in text_of(start(client, NEW, typed="1"))
    assert "type what the page asks for" in text_of(start(client, NEW, everything="yes"))
    assert not AuditEvent.objects.exists()
    assert start(client, NEW, everything="yes", typed="1").status_code == 302


@pytest.mark.parametrize("query", ["state=all", "queue=%00", "fingerprint=1", "cause=x"])
def test_impossible_filters_are_told_and_start_nothing(query):
    client = viewer("retry_job")
    address = f"{NEW}?{query}"
    assert "Nothing was written" in text_of(client.get(address)) or "no verb" in text_of(client.get(address))
    assert client.post(address, {"verb": "retry", "start": "x"}).status_code == 200
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_reasons_filters_and_names_are_shown_inert(text):
    make_in_state("FAILED")
    client = viewer("retry_job", "view_auditevent")
    assert start(client, reason=text).status_code == 302
    event = AuditEvent.objects.get()
    AuditEvent.objects.update(filters={"queue": text, text: text}, user_name=text, problem=text, verb=text[:16])
    for page in (client.get(AUDIT), client.get(f"{AUDIT}{event.pk}/change/"), client.get(NEW, {"tag": text})):
        shown = text_of(page)
        assert not Inline(shown).found
        assert "<img src=x" not in shown
        assert "<script>alert" not in shown
        assert "\u202e" not in shown


def test_a_reason_too_long_or_with_nul_is_stored_as_it_can_be():
    make_in_state("FAILED")
    start(viewer("retry_job"), reason="\x00" + "가" * 5000)
    assert len(AuditEvent.objects.get().reason) <= 500


def test_a_running_one_is_stopped_by_those_who_may_apply_its_verb():
    ids = [make_in_state("FAILED") for _ in range(3)]
    client = root()
    start(client)
    event = AuditEvent.objects.get()
    page = f"{AUDIT}{event.pk}/change/"
    other = client_of(person("view_auditevent", "cancel_job"))
    assert 'value="stop"' not in text_of(other.get(page))
    act(other, "stop", event.pk, path=AUDIT)
    assert AuditEvent.objects.get().phase == "waiting"
    step(using="default", most=1)
    assert 'value="stop"' in text_of(client.get(page))
    response = act(client, "stop", event.pk, path=AUDIT, jobqueue_page="1")
    assert response["Location"] == page
    found = AuditEvent.objects.get()
    assert (found.phase, found.problem, found.changed) == ("stopped", "stopped by root", 1)
    assert step(using="default") is None
    assert [state(job_id) for job_id in ids] == ["READY", "FAILED", "FAILED"]
    assert 'value="stop"' not in text_of(client.get(page))
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["retry", "stop"]


def test_a_database_that_cannot_be_written_to_is_told(monkeypatch):
    make_in_state("FAILED")

    def broken(*args, **options):
        raise OperationalError("gone")

    monkeypatch.setattr("jobqueue.admin.audit.bulk_page.record", broken)
    assert "Nothing was started" in text_of(start(viewer("retry_job")))


def test_an_action_that_is_missing_in_the_history_only_is_not_told_as_not_started(monkeypatch):
    make_in_state("FAILED")

    def broken(*args, **options):
        raise OperationalError("gone")

    monkeypatch.setattr(LogEntry, "save", broken)
    page = text_of(start(viewer("retry_job")))
    assert "Whether it was started is unknown" in page
    assert "Nothing was started" not in page
    assert AuditEvent.objects.count() == 1


def test_nothing_is_started_where_no_job_matches():
    client = viewer("retry_job")
    assert 'name="start"' not in text_of(client.get(FAILED))
    assert "no job matches any more" in text_of(client.post(FAILED, {"verb": "retry", "start": "x"}))
    assert not Job.objects.exists()
