"""The page that changes a job that waits: what it shows, asks for and refuses, and who may use it."""

from datetime import datetime

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

from jobqueue.models import JobTag
from jobqueue.transitions import cancel
from tests.admin.helpers import HOSTILE, Inline, job_page, text_of, viewer
from tests.app import tasks
from tests.factories import job, make_in_state, make_job, row

pytestmark = pytest.mark.django_db


def page_of(job_id):
    return reverse("admin:jobqueue_job_edit", args=[job_id])


def greeting(*args, **kwargs):
    return int(tasks.greet.enqueue(*args, **kwargs).id)


def fields(client, job_id):
    """What the form of the page holds."""
    form = client.get(page_of(job_id)).context["form"]
    return {name: form[name].value() if form[name].value() is not None else "" for name in form.fields}


def post(client, job_id, *, confirm=True, **changes):
    """Send the form with `changes`; after the preview, confirm it."""
    data = {**fields(client, job_id), **changes}
    response = client.post(page_of(job_id), data)
    if not confirm or response.context["changes"] is None:
        return response
    return client.post(page_of(job_id), data | {"confirm": "yes"}, follow=True)


def editor(*more):
    return viewer("edit_job", "view_payload", *more)


class TestWhoMay:
    def test_the_page_of_a_job_leads_there_with_the_permission_alone(self):
        job_id = make_job()
        assert page_of(job_id) in text_of(editor().get(job_page(job_id)))

    @pytest.mark.parametrize("method", ["get", "post"])
    def test_without_it_nothing_is_shown_or_changed(self, method):
        job_id, client = make_job(), viewer("retry_job", "view_payload")
        before = row(job_id)
        assert page_of(job_id) not in text_of(client.get(job_page(job_id)))
        assert getattr(client, method)(page_of(job_id), {"priority": 5, "confirm": "yes"}).status_code == 403
        assert row(job_id) == before

    def test_without_view_payload_the_arguments_are_neither_shown_nor_changed(self):
        job_id, client = greeting("Zelda", 1), viewer("edit_job")
        page = text_of(client.get(page_of(job_id)))
        assert "Zelda" not in page
        assert "You may not see its arguments" in page
        post(client, job_id, priority=5, args='["ben", 1]')
        assert (job(job_id).priority, job(job_id).payload["args"]) == (5, ["Zelda", 1])

    @pytest.mark.parametrize("name", ["PROCESSING", "DONE", "FAILED", "CANCELED"])
    def test_a_job_in_another_state_leads_back_to_its_page(self, name):
        job_id, client = make_in_state(name), editor()
        assert page_of(job_id) not in text_of(client.get(job_page(job_id)))
        response = client.get(page_of(job_id), follow=True)
        assert response.redirect_chain == [(job_page(job_id), 302)]
        assert "Only a job that waits can be changed" in text_of(response)

    def test_a_job_that_does_not_exist_is_not_found(self):
        assert editor().get(page_of(987_654_321)).status_code == 404


class TestChange:
    def test_what_would_be_changed_is_shown_first(self):
        job_id = greeting("ann", 1)
        before = row(job_id)
        page = text_of(post(editor(), job_id, confirm=False, priority=7, args='["ben", 1]', tags="a, b"))
        assert row(job_id) == before
        assert not JobTag.objects.exists()
        for text in ("Nothing has been changed yet", "[&quot;ben&quot;, 1]", "a, b", ">7<"):
            assert text in page

    def test_then_it_is_done_told_and_recorded_with_the_user(self):
        job_id, client = greeting("ann", 1), editor()
        page = text_of(post(client, job_id, priority=7, args='["ben", 1]', tags="a, b", max_attempts=3))
        assert "The job was changed" in page
        assert (job(job_id).priority, job(job_id).max_attempts) == (7, 3)
        assert job(job_id).payload["args"] == ["ben", 1]
        assert sorted(JobTag.objects.values_list("tag", flat=True)) == ["a", "b"]
        words = "edit: priority 0 -> 7, args[0] changed, max_attempts 25 -> 3, tags none -> a b"
        assert [(one.user.username, one.change_message) for one in LogEntry.objects.all()] == [("ann", words)]
        assert "priority 0 -&gt; 7" in page

    def test_what_is_not_touched_stays_to_the_microsecond(self):
        job_id = greeting("ann", 1)
        before = row(job_id)
        post(editor(), job_id, priority=7)
        changed = {name for name, value in row(job_id).items() if value != before[name]}
        assert changed == {"priority", "updated_at"}

    def test_times_are_in_the_zone_of_the_project(self):
        job_id = make_job()
        post(editor(), job_id, run_at="2190-01-31 18:00", expires="2190-02-01 18:00")
        zone = timezone.get_current_timezone()
        assert job(job_id).run_at == datetime(2190, 1, 31, 18, tzinfo=zone)
        assert job(job_id).expires_at == datetime(2190, 2, 1, 18, tzinfo=zone)

    def test_a_job_that_is_canceled_before_it_is_confirmed_is_left_alone(self):
        job_id, client = make_job(), editor()
        data = {**fields(client, job_id), "priority": 7}
        client.post(page_of(job_id), data)
        cancel(job_id)
        page = text_of(client.post(page_of(job_id), data | {"confirm": "yes"}, follow=True))
        assert "Only a job that waits can be changed" in page
        assert job(job_id).priority == 0


class TestSecrets:
    def test_a_masked_argument_that_is_left_so_keeps_its_value(self):
        job_id = greeting({"password": "hunter2", "city": "Seoul"}, 1)
        client = editor()
        assert "hunter2" not in text_of(client.get(page_of(job_id)))
        shown = '[{"password": "********", "city": "Busan"}, 1]'
        response = post(client, job_id, args=shown)
        assert "hunter2" not in text_of(response)
        assert job(job_id).payload["args"] == [{"password": "hunter2", "city": "Busan"}, 1]

    def test_a_mask_where_no_secret_is_is_refused(self):
        job_id = greeting("ann", 1)
        before = row(job_id)
        assert "stands for a secret" in text_of(post(editor(), job_id, args='["********", 1]'))
        assert row(job_id) == before


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({}, "Nothing differs"),
            ({"args": "{}"}, "not a JSON list"),
            ({"kwargs": "[1"}, "not a JSON object"),
            ({"args": "[1]"}, "missing a required argument"),
            ({"queue": "a,b"}, "may not start with"),
            ({"max_attempts": 0}, "greater than or equal to 1"),
            ({"run_at": "tomorrow"}, "Enter a valid date/time"),
            ({"run_at": ""}, "This field is required"),
            ({"tags": "x" * 200}, "tag"),
        ],
    )
    def test_a_wrong_value_is_told_and_nothing_is_written(self, changes, said):
        job_id = greeting("ann", 1)
        before = row(job_id)
        response = post(editor(), job_id, **changes)
        assert said in text_of(response)
        assert "Nothing was written" in text_of(response)
        assert row(job_id) == before

    def test_a_raw_row_has_no_fields_of_arguments(self):
        assert {"args", "kwargs"} & fields(editor(), make_job()).keys() == set()

    def test_arguments_that_cannot_be_read_can_be_replaced(self):
        job_id = make_job(payload="nonsense", task="tests.app.tasks.greet")
        post(editor(), job_id, args='["ben", 1]', kwargs="{ }")
        assert job(job_id).payload == {"args": ["ben", 1], "kwargs": {}}

    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_text_is_text(self, text):
        job_id = greeting(text, text)
        client = editor()
        for response in (client.get(page_of(job_id)), post(client, job_id, confirm=False, args=f'["{len(text)}", 1]')):
            assert Inline(text_of(response)).found == []
