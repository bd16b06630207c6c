"""What a job's page tells of progress, expiry and attempts."""

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobqueue.admin.page import formatting
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import JobAttempt
from jobqueue.transitions import fail
from tests.admin.helpers import HOSTILE, JOBS, client_of, job_page, person, text_of, viewer
from tests.app import tasks
from tests.factories import claim_one, set_columns
from tests.matrix import enough_on

pytestmark = [pytest.mark.django_db, enough_on("sqlite", why="pages; the verbs run everywhere")]


def test_the_page_shows_progress_expiry_options_and_what_was_logged():
    made = tasks.greet.using(expires=3655, timeout_seconds=77).enqueue("ann", 1)
    set_columns(made.id, progress={"done": 3, "total": 4, "note": "rows"})
    fail(claim_one("default"), error=ValueError("no"), log="12:00:00.000 WARNING shop: low on paper")
    page = text_of(viewer().get(job_page(made.id)))
    for text in (
        "3 / 4 (75 %): rows",
        "in 1h 0m",
        "&quot;timeout_seconds&quot;: 77",
        "Log lines",
        "low on paper",
    ):
        assert text in page, text
    assert "&lt;pre" not in page
    attempt = JobAttempt.objects.get()
    assert f"{timezone.localtime(attempt.started_at):%Y-%m-%d %H:%M:%S}" in page


def test_without_any_of_it_the_page_is_as_quiet():
    made = tasks.greet.enqueue("ann", 1)
    fail(claim_one("default"), error=ValueError("no"))
    page = text_of(viewer().get(job_page(made.id)))
    assert "Log lines" not in page
    assert "&lt;pre" not in page


@pytest.mark.parametrize(
    "columns", [{"expires_at": UtcNowPlus(-1)}, {"run_at": UtcNowPlus(600), "expires_at": UtcNowPlus(60)}]
)
def test_a_job_that_will_not_start_in_time_is_not_said_to_start(columns):
    made = tasks.greet.enqueue("ann", 1)
    set_columns(made.id, **columns)
    page = text_of(viewer().get(job_page(made.id)))
    assert "It expires before it can start" in page
    assert "starts it" not in page


def test_a_page_leaves_out_what_a_job_does_not_have():
    made = tasks.greet.enqueue("ann", 1)
    client = viewer()
    absent = ("Dedupe key", "Ordering key", "Progress", "Expires", "Last error", ">Failure<", ">Lease<", "Finished")
    page = text_of(client.get(job_page(made.id)))
    assert [word for word in absent if word in page] == []
    fail(claim_one("default"), error=ValueError("no"))
    page = text_of(client.get(job_page(made.id)))
    assert [word for word in ("Last error", ">Failure<", "History of failed attempts") if word not in page] == []


def test_the_page_of_a_scheduled_job_says_so_once():
    made = tasks.greet.enqueue("ann", 1)
    set_columns(made.id, run_at=UtcNowPlus(600), wait_reason="scheduled")
    client = viewer()
    assert "Wait reason" not in text_of(client.get(job_page(made.id)))
    set_columns(made.id, wait_reason="retry 2 of 25 after x")
    assert "Wait reason: retry 2 of 25 after x" in text_of(client.get(job_page(made.id)))


def test_the_button_of_a_job_that_has_not_run_yet_says_run_and_not_retry():
    made = tasks.greet.enqueue("ann", 1)
    set_columns(made.id, run_at=UtcNowPlus(600), wait_reason="scheduled")
    client = client_of(person("view_job", "retry_job"))
    page = text_of(client.get(job_page(made.id)))
    assert 'value="retry"' in page
    assert ">Run now<" in page
    assert ">Retry now<" not in page
    # After a failed attempt it is a retry.
    set_columns(made.id, attempts=1, wait_reason="retry 2 of 25 after x")
    page = text_of(client.get(job_page(made.id)))
    assert ">Retry now<" in page
    assert ">Run now<" not in page


SHORT = {
    "orders.tasks.send_receipt": "orders.send_receipt",
    "shop.orders.tasks.send_receipt": "orders.send_receipt",
    "shop.orders.tasks.mail.send_receipt": "mail.send_receipt",
    "orders.jobs.send_receipt": "jobs.send_receipt",
    "tasks.send_receipt": "send_receipt",
    "send receipt.": "send receipt.",
    "send": "send",
    "": "",
    "..": "..",
}


@pytest.mark.parametrize(("name", "short"), SHORT.items())
def test_a_task_name_is_shortened_to_its_app_and_its_function(name, short):
    assert formatting.short_task(name) == short


def test_the_list_shows_the_short_name_and_the_whole_one_as_a_hint():
    tasks.greet.enqueue("ann", 1)
    page = text_of(viewer().get(JOBS))
    assert '<span title="tests.app.tasks.greet">app.greet</span>' in page


def test_the_title_names_the_job_and_its_task():
    made = tasks.greet.enqueue("ann", 1)
    page = text_of(viewer().get(job_page(made.id)))
    assert f"<title>Job {made.id}: app.greet | " in page
    assert f"<h1>Job {made.id}: app.greet</h1>" in page
    assert "View job" not in page


NOTES = {
    "Traceback (most recent call last):\nValueError: no": "ValueError: no",
    "shop.payments.CardDeclined: no funds on shop.card.7: sorry": "CardDeclined: no funds on shop.card.7: sorry",
    "a.b: c": "b: c",
    "no class here": "no class here",
    "http://example.org: away": "http://example.org: away",
}


@pytest.mark.parametrize(("text", "note"), NOTES.items())
def test_the_note_of_an_error_begins_with_its_class(text, note):
    assert formatting.error_note(text) == note


def cell(column):
    """What the list shows in this column of its only row."""
    page = text_of(client_of(User.objects.get()).get(JOBS))
    return page.partition(f'<td class="field-{column}"')[2].partition(">")[2].partition("</td>")[0]


def test_below_the_task_stands_what_one_wants_to_know_in_its_state():
    made, _ = tasks.greet.enqueue("ann", 1), viewer()

    def note(**columns):
        set_columns(made.id, **columns)
        return cell("task_and_note").partition("</span>")[2]

    assert note(run_at=UtcNowPlus(600), wait_reason="scheduled") == ""
    again = "retry 2 of 25 after builtins.ValueError: no"
    assert f'<span title="{again}">retry 2 of 25 after ValueError: no</span>' in note(wait_reason=again)
    assert "waits for earlier jobs" in note(wait_reason="waits for earlier jobs with its ordering key")
    assert ">Oops: no</span>" in note(wait_reason=None, last_error="Traceback\nshop.Oops: no")
    set_columns(made.id, run_at=UtcNowPlus(-5))
    claim_one("default")
    assert "3 / 4 (75 %): rows" in note(progress={"done": 3, "total": 4, "note": "rows"})


def test_below_the_queue_stands_the_priority_and_below_the_time_the_worker():
    made, _ = tasks.greet.enqueue("ann", 1), viewer()
    assert cell("queue_and_priority") == "default"
    set_columns(made.id, priority=-3, last_worker="web-1:211:5f0c2a9e/1.1")
    assert cell("queue_and_priority") == 'default<div class="jobqueue-below">priority -3</div>'
    assert '<span title="web-1:211:5f0c2a9e/1.1">web-1:211</span>' in cell("when_and_worker")


def test_times_are_in_the_active_time_zone(settings):
    made = tasks.greet.enqueue("ann", 1)
    set_columns(made.id, created_at=datetime(2026, 1, 31, 23, 30, 5, tzinfo=UTC))
    client = viewer()
    with timezone.override(UTC):
        assert "2026-01-31 23:30:05 UTC (" in text_of(client.get(job_page(made.id)))
    settings.TIME_ZONE = "Asia/Seoul"
    assert "2026-02-01 08:30:05 KST (" in text_of(client.get(job_page(made.id)))
    with timezone.override("America/New_York"):
        assert "2026-01-31 18:30:05 EST (" in text_of(client.get(job_page(made.id)))


def test_the_attempts_say_in_which_time_zone_they_are():
    made = tasks.greet.enqueue("ann", 1)
    fail(claim_one("default"), error=ValueError("no"))
    JobAttempt.objects.update(ended_at=datetime(2026, 1, 31, 23, 30, 5, tzinfo=UTC))
    with timezone.override("Asia/Seoul"):
        page = text_of(viewer().get(job_page(made.id)))
    assert "ended (Asia/Seoul)" in page
    assert "<td>2026-02-01 08:30:05</td>" in page


@pytest.mark.parametrize("zone", ["Asia/Seoul", "America/New_York"])
@pytest.mark.parametrize("instant", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_an_instant_at_the_end_of_the_calendar_is_shown(zone, instant):
    with timezone.override(zone):
        assert formatting.moment(instant, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text):
    made = tasks.greet.enqueue("ann", 1)
    set_columns(made.id, progress={"done": 1, "total": None, "note": text}, options={text: text})
    fail(claim_one("default"), error="x", log=text)
    page = text_of(viewer().get(job_page(made.id)))
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page


def test_the_list_is_titled_with_what_it_lists():
    assert "<h1>Jobs</h1>" in text_of(viewer().get(JOBS))
