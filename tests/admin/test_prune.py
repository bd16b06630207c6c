"""The action that deletes ended jobs: it asks first, needs its own permission, and leaves the others."""

import pytest
from django.contrib.admin.models import LogEntry

from jobqueue.models import Job, JobAttempt
from tests.admin.helpers import JOBS, act, client_of, person, root, text_of, viewer
from tests.admin.test_actions import said
from tests.factories import make_in_state
from tests.retention.helpers import ended

pytestmark = pytest.mark.django_db


def test_it_asks_with_the_number_and_changes_nothing():
    ids = [ended("DONE", 1), ended("FAILED", 1)]
    live = make_in_state("READY")
    page = text_of(act(root(), "prune", *ids, live))
    assert "Delete 2 ended jobs?" in page
    assert "1 chosen job has not ended, and stays." in page
    assert 'name="confirm" value="yes"' in page
    assert [f'value="{job_id}"' in page for job_id in (*ids, live)] == [True, True, False]
    assert Job.objects.count() == 3


def test_the_answer_deletes_them_with_their_attempts_and_is_recorded():
    ids = [ended("DONE", 1), ended("FAILED", 1, attempts=2)]
    response = act(root(), "prune", *ids, confirm="yes")
    assert said(response) == "2 jobs were deleted."
    assert not Job.objects.exists()
    assert not JobAttempt.objects.exists()
    assert sorted(entry.change_message for entry in LogEntry.objects.all()) == [
        "delete (was DONE)",
        "delete (was FAILED)",
    ]


def test_jobs_that_have_not_ended_are_not_deleted_whatever_is_posted():
    live = [make_in_state(name) for name in ("PROCESSING", "READY")]
    response = act(root(), "prune", *live, confirm="yes")
    assert "2 were not changed, because their state does not allow it" in said(response)
    assert Job.objects.count() == 2


def test_without_an_ended_job_there_is_nothing_to_ask():
    live = make_in_state("READY")
    assert said(act(root(), "prune", live)) == "None of the chosen jobs has ended."


def test_it_needs_its_permission():
    job_id = ended("DONE", 1)
    for client in (viewer("discard_job"), client_of(person("view_job", name="bob"))):
        act(client, "prune", job_id, confirm="yes")
        assert 'value="prune"' not in text_of(client.get(JOBS))
    assert Job.objects.count() == 1
    act(viewer_with_prune(), "prune", job_id, confirm="yes")
    assert not Job.objects.exists()


def viewer_with_prune():
    return client_of(person("view_job", "prune_jobs", name="eve"))
