"""Run a quarantined or held job alone, from the admin: recorded there, carried out by a worker."""

import pytest
from django.contrib.admin.models import LogEntry

from jobqueue.dead_letters import redrives
from jobqueue.runs.alone import begin_alone
from jobqueue.transitions import ack
from tests.admin.helpers import JOBS, act, client_of, job_page, person, root, text_of, viewer
from tests.admin.test_actions import said
from tests.admin.test_redrives import REDRIVES
from tests.dead_letters.test_alone import looked, quarantined
from tests.factories import make_in_state, make_job, state

pytestmark = pytest.mark.django_db

BUTTON = 'value="run_alone" formaction'


def begin():
    return begin_alone(lambda queue: True, worker="alone", lease_seconds=60.0, using="default")


def test_the_button_records_it_and_the_pages_show_how_far_it_is():
    job_id = quarantined()
    client = root()
    assert BUTTON in text_of(client.get(job_page(job_id)))
    response = act(client, "run_alone", job_id, jobqueue_page="1")
    assert (response.status_code, response["Location"]) == (302, job_page(job_id))
    assert said(response) == "1 job is to run in a process of its own; the page of redrives shows the result."
    assert LogEntry.objects.get().get_change_message() == "run alone (was FAILED)"
    assert state(job_id) == "FAILED"
    assert "The next free worker of queue q runs it alone" in text_of(client.get(job_page(job_id)))
    page = text_of(client.get(REDRIVES))
    assert f'job <a href="{job_page(job_id)}">{job_id}</a>, alone' in page
    assert "waits to run alone" in page
    lease = begin()
    assert "runs alone" in text_of(client.get(REDRIVES))
    ack(lease)
    looked()
    assert f"job {job_id} is DONE" in text_of(client.get(REDRIVES))


def test_held_jobs_have_the_button_and_ordinary_dead_letters_only_the_action():
    client = root()
    assert BUTTON in text_of(client.get(job_page(make_job(gate=2))))
    failed = make_in_state("FAILED")
    assert BUTTON not in text_of(client.get(job_page(failed)))
    act(client, "run_alone", failed)
    assert redrives()[0].filters["job_ids"] == [failed]


def test_it_needs_the_permission_to_retry():
    job_id = quarantined()
    client = viewer("cancel_job", "redrive_jobs")
    assert BUTTON not in text_of(client.get(job_page(job_id)))
    assert '<option value="run_alone">' not in text_of(client.get(JOBS))
    act(client, "run_alone", job_id)
    act(client_of(person("retry_job", name="bob")), "run_alone", job_id)
    assert redrives() == []


def test_a_job_in_another_state_is_refused_with_its_state():
    response = act(root(), "run_alone", make_in_state("DONE"))
    assert said(response) == "1 was not changed, because its state does not allow it: done."
    assert redrives() == []
