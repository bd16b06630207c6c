"""The audit page: bulk actions, and the records of single verbs."""

import re

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import bulk_verbs, dead_letters
from jobqueue.models import AuditEvent, Job
from tests.admin.helpers import HOSTILE, LIMIT_STATEMENTS, Inline, act, client_of, job_page, person, text_of, viewer
from tests.factories import make_in_state
from tests.marks import finding

pytestmark = pytest.mark.django_db

AUDIT = "/admin/jobqueue/auditevent/"
VERBS = f"{AUDIT}verbs/"


def entry(user, text="retry (was FAILED)", job_id=1):
    kind = ContentType.objects.get_for_model(Job)
    return LogEntry.objects.create(
        user=user, content_type=kind, object_id=str(job_id), object_repr=f"job {job_id}", action_flag=CHANGE,
        change_message=text,
    )  # fmt: skip


def test_single_verbs_are_listed_with_who_what_and_the_state_before():
    job_id = make_in_state("FAILED")
    client = viewer("retry_job", "view_auditevent")
    act(client, "retry", job_id)
    page = text_of(client.get(AUDIT))
    assert "retry (was FAILED)" in page
    assert job_page(job_id) in page
    assert "ann" in page
    assert not Inline(page).found


def test_older_records_follow_by_keyset(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.audit.audit_admin.RECORDS_OF_PAGE", 2)
    user = person("view_auditevent")
    client, ids = client_of(user), []
    for number in range(3):
        ids.append(entry(user, f"text {number}").pk)
    page = text_of(client.get(VERBS))
    assert ["text 2" in page, "text 1" in page, "text 0" in page] == [True, True, False]
    assert f"?before={ids[1]}" in page
    page = text_of(client.get(VERBS, {"before": ids[1]}))
    assert ["text 1" in page, "text 0" in page, "?before=" in page] == [False, True, False]
    assert "text 2" in text_of(client.get(VERBS, {"before": "x' OR 1=1"}))


@finding("O-M11")
def test_the_records_of_a_user_stay_when_the_account_is_deleted():
    job_id = make_in_state("FAILED")
    user = person("view_job", "retry_job", "view_auditevent", name="leaver")
    act(client_of(user), "retry", job_id)
    did_at = LogEntry.objects.get().action_time
    assert get_user_model().objects.filter(pk=user.pk).delete()[0]
    assert not LogEntry.objects.exists()
    event = AuditEvent.objects.get()
    assert (event.user_name, event.verb, event.filters) == ("leaver", "retry", {"job_ids": str(job_id)})
    assert (event.reason, event.phase, event.due_at) == ("retry (was FAILED)", "done", None)
    assert event.created_at == event.ended_at == did_at
    page = text_of(viewer("view_auditevent").get(AUDIT))
    assert "leaver" in page
    assert "retry (was FAILED)" in page


def test_the_deletion_of_an_account_that_did_nothing_here_adds_no_record():
    user = person()
    LogEntry.objects.create(
        user=user, content_type=ContentType.objects.get_for_model(type(user)), object_id="1", object_repr="a user",
        action_flag=CHANGE, change_message="changed",
    )  # fmt: skip
    user.delete()
    assert not AuditEvent.objects.exists()


def test_bulk_actions_and_redrives_have_their_own_pages():
    make_in_state("FAILED")
    redriven = dead_letters.redrive(everything=True).id
    event = bulk_verbs.record("retry", {"queue": "q"}, who=bulk_verbs.Who(), reason="")
    client = viewer("view_auditevent", "view_redrive")
    pages = {f"/admin/jobqueue/auditevent/{event.pk}/change/", f"/admin/jobqueue/redrive/{redriven}/change/"}
    listed = "".join(text_of(client.get(f"/admin/jobqueue/{model}/")) for model in ("auditevent", "redrive"))
    assert set(re.findall(r"/admin/jobqueue/(?:auditevent|redrive)/[0-9]+/change/", listed)) == pages
    assert {client.get(page).status_code for page in pages} == {200}
    assert client.get(f"/admin/jobqueue/auditevent/{redriven}/change/").status_code == 302
    assert client.get(f"/admin/jobqueue/redrive/{event.pk}/change/").status_code == 302


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_records_are_shown_inert(text):
    user = person("view_auditevent")
    entry(user, text, job_id=text[:50])
    for path in (AUDIT, VERBS):
        page = text_of(client_of(user).get(path))
        assert not Inline(page).found
        assert "<script>alert" not in page
        assert "\u202e" not in page


def test_the_audit_is_for_those_who_may_see_it_and_nobody_edits_it():
    event = bulk_verbs.record("retry", {"queue": "q"}, who=bulk_verbs.Who(program="a script"))
    one = f"{AUDIT}{event.pk}/change/"
    for client in (client_of(person("view_job", "retry_job")), client_of(person(name="eve"))):
        for path in (AUDIT, VERBS, one):
            assert client.get(path).status_code == 403
        assert act(client, "stop", event.pk, path=AUDIT).status_code == 403
    client = client_of(person("view_auditevent", name="bob"))
    assert "a script" in text_of(client.get(AUDIT))
    assert client.post(one, {"reason": "x"}).status_code == 403
    assert client.get(f"{AUDIT}add/").status_code == 403
    assert client.get(f"{AUDIT}{event.pk}/delete/").status_code == 403
    act(client, "stop", event.pk, path=AUDIT)
    assert AuditEvent.objects.get().phase == "waiting"


def test_the_cost_does_not_grow_with_the_rows():
    user = person("view_auditevent", "retry_job")
    client, counts = client_of(user), []
    for many in (1, 30):
        for number in range(many):
            entry(user, job_id=number + 1)
            bulk_verbs.record("retry", {"queue": f"q{number}"}, who=bulk_verbs.Who(user_name="ann"))
        client.get(AUDIT)
        with CaptureQueriesContext(connection) as captured:
            text_of(client.get(AUDIT))
        counts.append(len(captured))
        assert all("LIMIT" in one["sql"] for one in captured if "job_audit" in one["sql"])
    # Where the first records are not enough for a page, older ones are looked for.
    assert counts[1] <= counts[0] <= 10 + LIMIT_STATEMENTS
