"""Each action is one call of a transition per job, recorded with the state before."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import OperationalError

from jobqueue import enqueue
from jobqueue.admin.jobs import actions
from jobqueue.admin.jobs.states import LABELS, VERBS
from jobqueue.admin.page import verb_admin
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import DatabaseBusy
from tests.admin.helpers import JOBS, act, client_of, job_page, person, root, text_of
from tests.factories import claim_one, expire, job, make_in_state, make_job, make_jobs, row, set_columns, state

pytestmark = pytest.mark.django_db

STATES = ("READY", "PROCESSING", "DONE", "FAILED", "CANCELED")
#: what the message says of one job that was changed
SAID = {
    ("retry", "FAILED"): "1 job will run now.",
    ("retry", "CANCELED"): "1 job will run now.",
    ("cancel", "READY"): "1 job was canceled.",
    ("cancel", "PROCESSING"): "1 running job was asked to stop.",
    ("discard", "READY"): "1 job was discarded and will not run.",
    ("discard", "FAILED"): "1 job was discarded and will not run.",
    ("release", "PROCESSING"): "1 job was taken from its worker and will run again.",
}
WORDS = {"READY": "ready", "PROCESSING": "running", "DONE": "done", "FAILED": "failed", "CANCELED": "canceled"}
#: (verb, state) -> state afterwards; everything else stays as it is, byte for byte
AFTER = {
    ("retry", "FAILED"): "READY",
    ("retry", "CANCELED"): "READY",
    ("cancel", "READY"): "CANCELED",
    ("cancel", "PROCESSING"): "PROCESSING",
    ("discard", "READY"): "CANCELED",
    ("discard", "FAILED"): "CANCELED",
    ("release", "PROCESSING"): "READY",
}


def said(response):
    return " ".join(str(message) for message in get_messages(response.wsgi_request))


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("verb", ["retry", "cancel", "discard", "release"])
def test_the_state_table(verb, before):
    job_id = make_in_state(before)
    was = row(job_id)
    response = act(root(), verb, job_id)
    expected = AFTER.get((verb, before))
    if expected is None:
        assert row(job_id) == was
        assert said(response) == f"1 was not changed, because its state does not allow it: {WORDS[before]}."
        assert not LogEntry.objects.exists()
        return
    assert state(job_id) == expected
    assert said(response) == SAID[verb, before]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username) == (str(job_id), "root")
    assert entry.get_change_message() == f"{verb} (was {before})"


def test_retry_makes_a_delayed_job_due():
    job_id = make_job(run_at=UtcNowPlus(3600))
    client = root()
    assert "scheduled" in text_of(client.get(job_page(job_id)))
    act(client, "retry", job_id)
    claim_one()
    assert state(job_id) == "PROCESSING"


@pytest.mark.parametrize("name", VERBS)
def test_a_page_offers_exactly_the_verbs_that_change_something(name):
    if name == "scheduled":
        job_id = make_job(run_at=UtcNowPlus(3600))
    elif name == "held":
        job_id = make_job(gate=2)
    else:
        job_id = make_in_state({"running": "PROCESSING", "expired": "PROCESSING"}.get(name, name.upper()))
    if name == "expired":
        expire(job_id)
    client, was = root(), row(job_id)
    page = text_of(client.get(job_page(job_id)))
    assert f'<span class="jobqueue-state jobqueue-{name}">{LABELS[name]}</span>' in page
    offered = [v for v in actions.BUTTONS if f'value="{v}" formaction' in page]
    assert sorted(offered) == sorted(VERBS[name])
    for verb in set(actions.BUTTONS) - set(offered):
        act(client, verb, job_id)
        assert row(job_id) == was, verb


def test_a_button_leads_back_to_the_jobs_page():
    job_id = make_in_state("FAILED")
    client = root()
    response = client.post(JOBS, {"action": "retry", "_selected_action": job_id, "jobqueue_page": "1"})
    assert (response.status_code, response["Location"]) == (302, job_page(job_id))
    assert "1 job will run now." in text_of(client.get(response["Location"]))


def test_actions_stop_at_their_limit_and_say_so(monkeypatch):
    monkeypatch.setattr(verb_admin, "ACTION_MAX", 3)
    ids = make_jobs(5)
    response = act(root(), "cancel", *ids[:1], select_across="1")
    assert [state(i) for i in ids] == ["CANCELED"] * 3 + ["READY"] * 2
    assert "3 jobs were canceled. Only the first 3 were processed" in said(response)
    assert LogEntry.objects.count() == 3


def test_all_matching_means_the_filtered_rows_only():
    mine, other = make_job("a"), make_job("b")
    act(root(), "cancel", mine, path=f"{JOBS}?queue=a", select_across="1")
    assert (state(mine), state(other)) == ("CANCELED", "READY")


def test_rows_outside_the_filter_cannot_be_named():
    mine, other = make_job("a"), make_job("b")
    act(root(), "cancel", mine, other, path=f"{JOBS}?queue=a")
    assert (state(mine), state(other)) == ("CANCELED", "READY")


@pytest.mark.parametrize("query", ["state=bogus", "cause=bogus", "state=", "cause=%00"])
def test_an_unknown_filter_value_never_means_all(query):
    job_id = make_job()
    act(root(), "cancel", job_id, path=f"{JOBS}?{query}", select_across="1")
    assert state(job_id) == "READY"


@pytest.mark.parametrize("chosen", ["abc", "1 OR 1=1", "-1", "1.5", "9" * 30, "\x00", "٣", ""])
def test_a_selection_that_is_no_id_is_refused(chosen):
    job_id = make_job()
    assert act(root(), "cancel", chosen).status_code == 400
    assert state(job_id) == "READY"


def test_ids_that_do_not_exist_are_no_error():
    response = act(root(), "cancel", 987654321)
    assert response.status_code == 302
    assert said(response) == "Nothing was changed: the rows that you chose are no longer in this list."


@pytest.mark.parametrize("error", [OperationalError("gone"), DatabaseBusy("busy")])
def test_what_was_changed_before_the_database_failed_is_on_record(monkeypatch, error):
    ids, real = make_jobs(3), actions.transitions.cancel

    def cancel(job_id, **options):
        if job_id == ids[1]:
            raise error
        return real(job_id, **options)

    monkeypatch.setattr(actions.transitions, "cancel", cancel)
    response = act(root(), "cancel", *ids)
    assert [state(i) for i in ids] == ["CANCELED", "READY", "READY"]
    assert "1 job was canceled." in said(response)
    assert "could not be written to" in said(response)
    assert LogEntry.objects.get().object_id == str(ids[0])


def test_a_mixed_selection_is_told_apart():
    ready, running, done, failed = (make_in_state(s, s.lower()) for s in STATES[:4])
    told = said(act(root(), "cancel", ready, running, done, failed))
    assert told == (
        "1 job was canceled. 1 running job was asked to stop. "
        "2 were not changed, because their state does not allow it: done; failed."
    )


def test_a_retried_job_that_waits_for_its_key_is_not_said_to_run_now():
    first, second = (enqueue("q", n, ordering_key="k") for n in range(2))
    client = root()
    act(client, "cancel", second)
    told = said(act(client, "retry", second))
    assert told.endswith("1 job will run when the earlier jobs of its ordering key have ended.")
    assert (state(first), state(second)) == ("READY", "READY")


def test_history_shows_who_did_what():
    job_id = make_in_state("FAILED")
    client = root()
    act(client, "discard", job_id)
    page = text_of(client.get(f"{JOBS}{job_id}/history/"))
    assert "discard (was FAILED)" in page
    assert "root" in page
    assert f"Change history: job {job_id}" in page


def test_retry_is_refused_while_another_job_has_the_key():
    first = enqueue("q", 1, dedupe_key="k")
    act(root(), "cancel", first)
    set_columns(first, dedupe_key=None, released_key=b"k")
    second = enqueue("q", 2, dedupe_key="k")
    response = act(client_of(person("view_job", "retry_job")), "retry", first)
    assert said(response) == "1 was not changed: another job has its dedupe key, or its state has just changed."
    assert (state(first), state(second)) == ("CANCELED", "READY")
    assert job(first).released_key == b"k"
