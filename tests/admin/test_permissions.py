"""Who may see and do what: the button and the request are refused alike."""

from unittest.mock import MagicMock, Mock

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AnonymousUser, Permission

from jobqueue.admin.jobs import actions
from jobqueue.models import IdempotencyRecord, Job, OutboxEvent, Worker
from tests.admin.helpers import JOBS, VERBS, WORKERS, act, client_of, job_page, person, root, text_of, viewer
from tests.factories import claim_one, job, make_in_state, make_job, row, state

pytestmark = pytest.mark.django_db

#: a state in which each verb changes something
STATE_FOR = {"retry": "FAILED", "cancel": "READY", "discard": "FAILED", "release": "PROCESSING"}


@pytest.mark.parametrize("kind", ["anonymous", "no staff", "staff without permission", "only verbs"])
def test_without_view_permission_nothing_is_shown_or_done(kind):
    job_id = make_in_state("FAILED")
    verbs = [f"{verb}_job" for verb in VERBS]
    user = {
        "anonymous": lambda: None,
        "no staff": lambda: person("view_job", *verbs, staff=False),
        "staff without permission": person,
        "only verbs": lambda: person(*verbs, "view_payload"),
    }[kind]()
    client, before = client_of(user), row(job_id)
    refused = 302 if kind in ("anonymous", "no staff") else 403
    for path in (JOBS, job_page(job_id), f"{JOBS}{job_id}/history/", WORKERS):
        response = client.get(path)
        assert response.status_code == refused, path
        if refused == 302:
            assert "/login/" in response["Location"]
    for verb in VERBS:
        assert act(client, verb, job_id).status_code == refused
    assert row(job_id) == before


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_needs_its_own_permission(verb):
    job_id = make_in_state(STATE_FOR[verb])
    others = [f"{other}_job" for other in VERBS if other != verb]
    client, before = viewer(*others, "view_payload"), row(job_id)
    page = text_of(client.get(JOBS))
    assert f'<option value="{verb}">' not in page
    assert all(f'<option value="{other}">' in page for other in VERBS if other != verb)
    assert f'value="{verb}" formaction' not in text_of(client.get(job_page(job_id)))
    act(client, verb, job_id)
    act(client, verb, job_id, jobqueue_page="1")
    assert row(job_id) == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("verb", VERBS)
def test_one_permission_gives_one_verb(verb):
    job_id = make_in_state(STATE_FOR[verb])
    client = viewer(f"{verb}_job")
    page = text_of(client.get(JOBS))
    assert [v for v in VERBS if f'<option value="{v}">' in page] == [verb]
    buttons = text_of(client.get(job_page(job_id)))
    assert [v for v in VERBS if f'value="{v}" formaction' in buttons] == [verb]
    response = act(client, verb, job_id)
    assert (response.status_code, response["Location"]) == (302, JOBS)
    assert state(job_id) != STATE_FOR[verb]


def test_view_permission_alone_changes_nothing():
    ids = [make_in_state(name, name) for name in ("READY", "PROCESSING", "FAILED", "CANCELED")]
    client, before = viewer(), [row(i) for i in ids]
    page = text_of(client.get(JOBS))
    assert 'name="action"' not in page
    assert "jobqueue-verbs" not in text_of(client.get(job_page(ids[0])))
    for verb in (*VERBS, "delete_selected", "_apply", "no such action"):
        act(client, verb, *ids)
    assert [row(i) for i in ids] == before


def test_delete_selected_is_not_offered_even_to_a_superuser():
    job_id = make_job()
    client = root()
    assert "delete_selected" not in text_of(client.get(JOBS))
    act(client, "delete_selected", job_id, post="yes")
    assert state(job_id) == "READY"


@pytest.mark.parametrize("path", ["add/", "{id}/delete/"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_nothing_can_be_added_or_deleted(path, method):
    job_id = make_job()
    response = getattr(root(), method)(JOBS + path.format(id=job_id), {"post": "yes", "queue": "x"})
    assert response.status_code == 403
    assert state(job_id) == "READY"


def test_a_job_cannot_be_edited():
    job_id = make_job()
    before, client = row(job_id), root()
    page = text_of(client.get(job_page(job_id)))
    assert "_save" not in page
    assert 'name="status"' not in page
    for data in (
        {"status": 2, "_save": "Save"},
        {"lock_token": "x", "attempts": 0},
        {"queue": "other", "_continue": 1},
    ):
        assert client.post(job_page(job_id), data).status_code == 403
    assert row(job_id) == before


def test_a_get_changes_nothing():
    job_id = make_in_state("FAILED")
    client, before = root(), row(job_id)
    query = f"action=retry&_selected_action={job_id}&index=0&jobqueue_page=1"
    for path in (JOBS, job_page(job_id), f"{JOBS}{job_id}/history/"):
        for method in (client.get, client.head, client.options):
            method(f"{path}?{query}")
    assert row(job_id) == before


def test_a_post_needs_the_csrf_token():
    job_id = make_in_state("FAILED")
    client, before = root(enforce_csrf_checks=True), row(job_id)
    assert act(client, "retry", job_id).status_code == 403
    assert row(job_id) == before
    client.get(JOBS)
    token = client.cookies["csrftoken"].value
    assert act(client, "retry", job_id, csrfmiddlewaretoken=token).status_code == 302
    assert state(job_id) == "READY"


def test_the_payload_is_hidden_without_its_permission():
    job_id = make_job(payload={"customer": "hunter-in-the-payload"})
    lease = claim_one()
    from jobqueue.transitions import ack

    ack(lease, result="prey-in-the-result")
    seen = text_of(viewer("view_payload").get(job_page(job_id)))
    assert "hunter-in-the-payload" in seen
    assert "prey-in-the-result" in seen
    hidden = text_of(client_of(person("view_job", "retry_job", name="bob")).get(job_page(job_id)))
    assert "hunter" not in hidden
    assert "prey" not in hidden


@pytest.mark.parametrize("query", ["payload__contains=hunter", "payload__password__startswith=h", "result__isnull=1"])
def test_the_payload_cannot_be_guessed_through_filters(query):
    make_job(payload={"password": "hunter"})
    assert viewer().get(f"{JOBS}?{query}").status_code == 400


def test_a_row_that_a_worker_holds_is_changed_only_by_asking_or_releasing():
    job_id = make_job()
    lease = claim_one()
    before, client = row(job_id), root()
    for verb in ("retry", "discard"):
        act(client, verb, job_id)
    assert row(job_id) == before
    act(client, "cancel", job_id)
    after = job(job_id)
    assert after.cancel_requested_at is not None
    assert (after.lock_token, after.locked_by, state(job_id)) == (lease.token, "w", "PROCESSING")
    assert "running, stop requested" in text_of(client.get(JOBS))
    act(client, "release", job_id)
    assert state(job_id) in ("READY", "CANCELED")
    assert job(job_id).lock_token is None


def test_pages_and_actions_use_the_queues_own_database(settings, monkeypatch, rf):
    settings.JOBQUEUE = {"DATABASE": "elsewhere"}
    request = rf.get(JOBS)
    request.user = AnonymousUser()
    for model in (Job, Worker, OutboxEvent, IdempotencyRecord):
        assert admin.site.get_model_admin(model).get_queryset(request).db == "elsewhere"
    used = []
    monkeypatch.setattr(actions.transitions, "cancel", lambda job_id, using: used.append(using) or True)
    chosen, page = MagicMock(), Mock()
    page.states_of.return_value = [(1, "READY"), (2, "READY")]
    actions.cancel(page, request, chosen)
    assert used == ["elsewhere"] * 2
    page.log_verb.assert_called_once()


def test_there_is_no_permission_to_write_that_does_nothing():
    codenames = {one.codename for one in Permission.objects.filter(content_type__app_label="jobqueue")}
    writing = {name for name in codenames if name.startswith(("add_", "change_", "delete_"))}
    own = {"add_schedule", "change_schedule", "change_failurenote", "change_limits", "delete_idempotencyrecord"}
    assert writing == own
