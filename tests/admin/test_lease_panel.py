"""The lease of a running job on its page, and what one can do about it."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobqueue.admin.jobs.page import TOKEN_DIGITS
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.models import Worker
from tests.admin.helpers import HOSTILE, JOBS, act, client_of, job_page, person, text_of, viewer
from tests.admin.test_actions import said
from tests.factories import (
    claim_one,
    expire,
    job,
    make_in_state,
    make_job,
    now,
    row,
    set_columns,
    state,
    was_ahead,
)

pytestmark = pytest.mark.django_db

NAME = "web-1:211:5f0c2a9e/1.1"


def running():
    job_id = make_job()
    claim_one(worker=NAME)
    return job_id


def worker(**columns):
    plain = {"host": "web-1", "pid": 211, "supervisor_pid": 1, "boot_id": "b", "queues": "*", "concurrency": 8}
    made = Worker.objects.create(name=NAME, version="1", heartbeat_seconds=15.0, **plain)
    if columns:
        Worker.objects.filter(pk=made.pk).update(**columns)
    return made


def panel(client, job_id):
    """The part of the page about the lease; "" if there is none."""
    page = text_of(client.get(job_page(job_id)))
    return page.partition('id="lease"')[2].partition("</section>")[0]


def test_a_running_job_tells_who_holds_it_and_until_when():
    job_id = running()
    worker(heartbeat_at=UtcNowPlus(-3))
    part = panel(viewer(), job_id)
    token = bytes(job(job_id).lock_token).hex()
    for text in (NAME, "Held since", "Lease ends", "last heartbeat 3", "one every 15s", token[:TOKEN_DIGITS]):
        assert text in part, text
    assert re.search(r"\(in (1m 0s|59s|58s)\)", part)
    assert token not in part


@pytest.mark.parametrize("name", ["READY", "DONE", "FAILED", "CANCELED"])
def test_other_jobs_have_no_lease(name):
    assert panel(viewer("release_job"), make_in_state(name)) == ""


def test_its_worker_is_a_link_for_those_who_may_see_workers():
    job_id, made = running(), worker()
    page = reverse("admin:jobqueue_worker_change", args=[made.pk])
    assert f'<a href="{page}">{NAME}</a>' in panel(viewer(), job_id)
    part = panel(client_of(person("view_job", name="bob")), job_id)
    assert page not in part
    assert NAME in part


def test_a_silent_worker_a_stopped_one_and_an_unknown_one_are_told_apart():
    job_id, client = running(), viewer()
    assert "State of the worker" not in panel(client, job_id)
    made = worker(heartbeat_at=UtcNowPlus(-600))
    assert "no heartbeat" in panel(client, job_id)
    Worker.objects.filter(pk=made.pk).update(stopped_at=UtcNow(), stop_reason="SIGTERM")
    assert "stopped: SIGTERM" in panel(client, job_id)


def test_the_lease_is_extended_by_the_time_that_was_chosen():
    job_id = running()
    client = viewer("release_job")
    part = panel(client, job_id)
    assert '<select name="extend_seconds"' in part
    assert '<option value="900" selected>15 minutes</option>' in part
    begun = now()
    response = act(client, "extend", job_id, jobqueue_page="1", extend_seconds="3600")
    assert (response.status_code, response["Location"]) == (302, job_page(job_id))
    assert was_ahead(job(job_id).lock_until, 3600, 3600, since=begun)
    assert said(response) == "The lease of 1 job lasts longer now."
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.get_change_message()) == (str(job_id), "extend (was PROCESSING)")
    page = text_of(client.get(job_page(job_id)))
    assert "Last changes" in page
    assert "extend (was PROCESSING)" in page


def test_from_the_list_it_is_extended_by_a_quarter_of_an_hour():
    job_id, begun = running(), now()
    act(viewer("release_job"), "extend", job_id)
    assert was_ahead(job(job_id).lock_until, 900, 900, since=begun)


@pytest.mark.parametrize("seconds", ["", "0", "-5", "901", "1e9", "nan", "86400000", "x", "\u0661"])
def test_a_time_that_no_page_offers_is_refused(seconds):
    job_id = running()
    before = row(job_id)
    assert act(viewer("release_job"), "extend", job_id, extend_seconds=seconds).status_code == 400
    assert row(job_id) == before


def test_without_the_permission_there_is_no_button_and_nothing_is_extended():
    job_id = running()
    before, client = row(job_id), viewer("cancel_job", "retry_job", "discard_job", "view_payload")
    part = panel(client, job_id)
    assert 'value="extend"' not in part
    assert "<select" not in part
    act(client, "extend", job_id, extend_seconds="900", jobqueue_page="1")
    assert row(job_id) == before


def test_a_lease_that_has_run_out_is_not_extended_and_the_user_is_told():
    job_id = running()
    expire(job_id)
    client = viewer("release_job")
    part = panel(client, job_id)
    assert 'value="extend"' not in part
    assert 'value="release"' in part
    assert said(act(client, "extend", job_id)) == "1 was not changed: its lease has run out."


def test_the_job_is_released_from_its_panel():
    job_id = running()
    client = viewer("release_job")
    assert 'value="release" formaction' in panel(client, job_id)
    assert "both runs may do their work" in panel(client, job_id)
    act(client, "release", job_id, jobqueue_page="1")
    assert state(job_id) == "READY"


def test_the_buttons_of_the_lease_are_beside_it_and_the_others_above():
    job_id = running()
    client = viewer("release_job", "cancel_job")
    page = text_of(client.get(job_page(job_id)))
    head, _, rest = page.partition('id="lease"')
    assert "Ask to stop" in head
    assert 'value="cancel"' not in rest
    assert page.count('name="_selected_action"') == 1
    assert JOBS in rest


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_holders_are_text(text):
    job_id = running()
    worker(name=text, stopped_at=UtcNow(), stop_reason=text)
    set_columns(job_id, locked_by=text)
    part = panel(viewer(), job_id)
    assert "<script>" not in part
    assert "<img" not in part
    assert "\u202e" not in part
