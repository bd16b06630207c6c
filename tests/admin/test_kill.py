"""The action that stops running jobs for good: it asks first, and names the jobs in the same processes."""

import pytest
from django.contrib.admin.models import LogEntry

from jobqueue.models import Job
from jobqueue.transitions import cancel, claim
from jobqueue.transitions.killing import end_killed, kill_at
from tests.admin.helpers import JOBS, act, client_of, job_page, person, root, text_of, viewer
from tests.admin.test_actions import said
from tests.app import tasks
from tests.factories import claim_one, job, make_in_state, make_job, row

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


def crowd(beside=1):
    """A running job, and some in the same process."""
    first = make_job()
    others = [int(tasks.add.using(queue_name="q").enqueue(n, 2).id) for n in range(beside)]
    claim("q", 1 + beside, worker="host:1.1")
    return first, *others


def killed_at(job_id):
    found = job(job_id)
    return kill_at(found.options, found.fence)


def test_it_names_the_jobs_beside_and_changes_nothing():
    job_id, other = crowd()
    before = row(job_id)
    page = text_of(act(root(), "kill", job_id))
    assert "Stop 1 running job for good?" in page
    assert f'<a href="{job_page(other)}">#{other} {tasks.add.module_path}</a>' in page
    assert 'name="kill_after" value="10s"' in page
    assert f'name="_selected_action" value="{job_id}"' in page
    assert row(job_id) == before


def test_the_answer_asks_for_the_kill_and_is_recorded():
    job_id, other = crowd()
    response = act(viewer("cancel_job"), "kill", job_id, confirm="yes", kill_after="2m")
    assert said(response) == "1 running job was asked to stop."
    found = job(job_id)
    assert 119 < (killed_at(job_id) - found.cancel_requested_at).total_seconds() <= 120
    assert job(other).cancel_requested_at is None
    assert LogEntry.objects.get().change_message == "cancel kill_after=120 (was PROCESSING)"


@pytest.mark.parametrize("time", ["", "-1", "soon", "nan", "9999d", HOSTILE])
def test_a_time_that_is_none_is_refused_and_asked_for_again(time):
    job_id, _ = crowd()
    before = row(job_id)
    page = text_of(act(root(), "kill", job_id, confirm="yes", kill_after=time))
    assert "Stop 1 running job for good?" in page
    assert HOSTILE not in page
    assert row(job_id) == before


def test_the_name_of_a_task_is_text():
    job_id, other = crowd()
    Job.objects.filter(pk=other).update(task=HOSTILE)
    assert HOSTILE not in text_of(act(root(), "kill", job_id))


def test_many_jobs_beside_are_not_all_named(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.jobs.actions.BESIDE_SHOWN", 2)
    job_id, *others = crowd(5)
    page = text_of(act(root(), "kill", job_id))
    assert [f"#{other} " in page for other in others] == [True, True, False, False, False]
    assert "and 3 more" in page


def test_without_a_running_job_there_is_nothing_to_ask():
    assert said(act(root(), "kill", make_in_state("READY"))) == "None of the chosen jobs runs."


def test_it_needs_the_permission_to_cancel():
    job_id, _ = crowd()
    before = row(job_id)
    for client in (viewer("release_job"), client_of(person("view_job", name="bob"))):
        act(client, "kill", job_id, confirm="yes", kill_after="1s")
        assert 'value="kill"' not in text_of(client.get(JOBS))
        assert 'value="kill"' not in text_of(client.get(job_page(job_id)))
    assert row(job_id) == before


def test_the_page_of_a_running_job_has_the_button_and_says_when_it_will_be_killed():
    job_id, _ = crowd()
    client = viewer("cancel_job")
    page = text_of(client.get(job_page(job_id)))
    assert 'name="action" value="kill"' in page
    assert "Stop for good" in page
    cancel(job_id, kill_after_seconds=3600)
    page = text_of(client.get(job_page(job_id)))
    assert "It was canceled. If it still runs in " in page
    assert 'value="kill"' not in text_of(client.get(job_page(make_in_state("READY"))))


def test_the_page_of_a_killed_job_shows_where_it_was():
    make_job()
    lease = claim_one()
    cancel(lease.job_id, kill_after_seconds=0)
    assert end_killed(lease, ["shop/tasks.py:7 waits_for_ever"])
    page = text_of(viewer().get(job_page(lease.job_id)))
    assert "shop/tasks.py:7 waits_for_ever" in page
    assert "Attempt 1 was stopped" in page
    assert "Attempt 1 failed" not in page
