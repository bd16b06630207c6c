"""What a job's page tells of progress, expiry and attempts."""

import re
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobqueue import flow
from jobqueue.admin.jobs import page_fields
from jobqueue.admin.page import formatting, history
from jobqueue.admin.page.formatting import error_line
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, JobAttempt, Worker
from jobqueue.transitions import fail
from tests.admin.helpers import HOSTILE, JOBS, act, client_of, job_page, person, root, text_of, viewer
from tests.app import tasks
from tests.factories import claim_one, make_in_state, set_columns

pytestmark = pytest.mark.django_db


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


def test_a_column_of_an_enqueue_without_words_of_its_own_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(page_fields, "_IN_WORDS", page_fields._IN_WORDS - {"unique_seconds"})
    without, made = tasks.greet.enqueue("ann", 1), tasks.greet.using(unique_seconds=12.5).enqueue("ann", 2)
    client = viewer()
    assert "Unique seconds" not in text_of(client.get(job_page(without.id)))
    page = text_of(client.get(job_page(made.id)))
    assert "Unique seconds" in page
    assert "12.5" in page


def test_a_page_leaves_out_what_a_job_does_not_have():
    made = tasks.greet.enqueue("ann", 1)
    client = viewer()
    absent = ["Dedupe key", "Ordering key", "Progress", "Expires", "Last error", "Tags", "Priority", ">Lease<"]
    absent += ["Finished", "Result", "Attempts that failed", "Cause", "Last changes", "Note on such", "<dd>-</dd>"]
    page = text_of(client.get(job_page(made.id)))
    assert [word for word in absent if word in page] == []
    fail(claim_one("default"), error=ValueError("no"))
    page = text_of(client.get(job_page(made.id)))
    present = ("Attempts that failed", "Jobs that failed like that", "Last worker")
    assert [word for word in present if word not in page] == []


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
    assert f"<title>app.greet (job {made.id}) | " in page
    assert f"<h1>app.greet (job {made.id})</h1>" in page
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
    assert error_line(text) == note


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


def test_the_attempts_and_the_timeline_say_in_which_time_zone_they_are():
    made = tasks.greet.enqueue("ann", 1)
    fail(claim_one("default"), error=ValueError("no"))
    times = {"started_at": datetime(2026, 1, 31, 23, 30, 5, tzinfo=UTC)}
    JobAttempt.objects.update(**times, ended_at=datetime(2026, 1, 31, 23, 30, 7, tzinfo=UTC))
    with timezone.override("Asia/Seoul"):
        page = text_of(viewer().get(job_page(made.id)))
    assert "Timeline <small>Asia/Seoul</small>" in page
    assert '<span class="jobqueue-event-at">2026-02-01 08:30:05 <small>' in page
    assert "<dt>Ended at</dt><dd>2026-02-01 08:30:07 KST (" in page


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


def test_the_newest_attempt_is_open_and_the_others_are_not():
    made = tasks.greet.enqueue("ann", 1)
    for number in range(3):
        fail(claim_one("default"), error=ValueError(f"no {number}"), delay_seconds=0)
    page = text_of(viewer().get(job_page(made.id)))
    assert page.count('<details class="jobqueue-attempt"') == 3
    assert page.count('<details class="jobqueue-attempt" open>') == 1
    assert page.index("ValueError: no 2") < page.index("ValueError: no 1") < page.index("ValueError: no 0")
    assert page.count('<div class="jobqueue-copy"><pre') == 3
    assert 'data-jobqueue-copy="Copy"' in page
    assert '<script src="/static/jobqueue/copy.js" defer></script>' in page


def test_an_error_that_is_of_no_attempt_is_shown_too():
    made = tasks.greet.enqueue("ann", 1)
    set_columns(made.id, last_error="written by another program")
    page = text_of(viewer().get(job_page(made.id)))
    assert "Last error" in page
    assert "written by another program" in page


def test_of_a_long_error_the_end_is_shown_because_it_names_the_error():
    made = tasks.greet.enqueue("ann", 1)
    fail(claim_one("default"), error="\n".join(f"line {n} of the trace" for n in range(5000)) + "\nOops: the end")
    page = text_of(viewer().get(job_page(made.id)))
    assert "Oops: the end" in page
    assert "line 10 of the trace" not in page
    assert len(page) < 100_000


def test_why_a_waiting_job_does_not_run_is_told_with_what_to_do():
    made = tasks.greet.enqueue("ann", 1)
    client = viewer()
    flow.pause("default", reason="we move <b>house</b>", by="kim")
    page = text_of(client.get(job_page(made.id)))
    part = page.partition("Why it is not running")[2].partition("</ol>")[0]
    assert part.count("<li>") == 2
    assert "we move &lt;b&gt;house&lt;/b&gt;" in part
    assert "Start a worker: python manage.py runworker" in part
    assert "It starts when none of the reasons below holds it back any more." in page


def test_a_reason_leads_to_the_jobs_and_the_pages_that_it_is_about():
    first_id, second_id = (int(tasks.greet.enqueue("ann", 1).id) for _ in range(2))
    flow.set_limit("default", task=tasks.greet, concurrency=1)
    assert claim_one("default").job_id == first_id
    page = text_of(root().get(job_page(second_id)))
    part = page.partition("Why it is not running")[2].partition("</ol>")[0]
    assert f'<a href="{job_page(first_id)}">job {first_id}</a>' in part
    assert 'href="/admin/jobqueue/flowrule/queue/?queue=default&amp;task=' in part
    assert "on the page of the queue" in part


def test_a_reason_has_no_command_for_the_terminal():
    first_id, second_id = (int(tasks.greet.using(ordering_key="k").enqueue("ann", 1).id) for _ in range(2))
    Job.objects.filter(pk=first_id).update(run_at=UtcNowPlus(3600))
    page = text_of(root().get(job_page(second_id)))
    part = page.partition("Why it is not running")[2].partition("</ol>")[0]
    assert f">job {first_id}</a>" in part
    assert "(jobs " not in part


def test_a_job_that_only_has_to_wait_is_not_explained_at_length():
    made = tasks.greet.enqueue("ann", 1)
    Worker.objects.create(
        name="w", host="h", pid=1, supervisor_pid=1, boot_id="b", queues="*", concurrency=1, version="1"
    )
    client = viewer()
    page = text_of(client.get(job_page(made.id)))
    assert "The next free worker of queue default starts it." in page
    assert "Why it is not running" not in page
    set_columns(made.id, run_at=UtcNowPlus(600))
    assert "Why it is not running" not in text_of(client.get(job_page(made.id)))


@pytest.mark.parametrize("name", ["PROCESSING", "DONE", "FAILED", "CANCELED"])
def test_jobs_that_do_not_wait_are_not_explained(name):
    assert "Why it is not running" not in text_of(viewer().get(job_page(make_in_state(name))))


def test_tags_keys_task_and_queue_lead_to_the_jobs_that_share_them():
    made = tasks.greet.using(tags=["a & b", "nightly"], ordering_key="customer 7").enqueue("ann", 1)
    page = text_of(viewer().get(job_page(made.id)))
    for link in (
        f'<a href="{JOBS}?tag=a+%26+b">a &amp; b</a>',
        f'<a href="{JOBS}?tag=nightly">nightly</a>',
        f'<a href="{JOBS}?queue=default&amp;q=customer+7">customer 7</a>',
        f'<a href="{JOBS}?task=tests.app.tasks.greet">tests.app.tasks.greet</a>',
        f'<a href="{JOBS}?queue=default">default</a>',
    ):
        assert link in page, link


def test_links_to_pages_that_one_may_not_see_are_left_out():
    made = tasks.greet.enqueue("ann", 1)
    fail(claim_one("default"), error=ValueError("no"), retry=False)
    page = text_of(viewer().get(job_page(made.id)))
    assert "/flowrule/" not in page
    assert "redrive/new" not in page
    page = text_of(client_of(person("view_job", "view_flowrule", "redrive_jobs", "view_redrive", name="bob")).get(
        job_page(made.id)
    ))  # fmt: skip
    assert "/flowrule/queue/?queue=default" in page or "queue=default" in page
    assert "redrive/new" in page


def test_each_button_says_what_follows():
    ready, failed = make_in_state("READY", "a"), make_in_state("FAILED", "b")
    client = viewer("retry_job", "cancel_job", "discard_job")
    page = text_of(client.get(job_page(ready)))
    assert "It ends and does not run." in page
    assert 'aria-describedby="jobqueue-does-cancel"' in page
    assert '<span id="jobqueue-does-cancel">' in page
    page = text_of(client.get(job_page(failed)))
    assert "It leaves the dead letters and does not run again." in page
    assert "with new attempts." in page


def test_progress_with_a_total_has_a_bar():
    made = tasks.greet.enqueue("ann", 1)
    client = viewer()
    set_columns(made.id, progress={"done": 3, "total": 4, "note": "rows"})
    assert '<progress value="3" max="4" aria-label="Progress">' in text_of(client.get(job_page(made.id)))
    set_columns(made.id, progress={"done": 3, "total": None, "note": "rows"})
    page = text_of(client.get(job_page(made.id)))
    assert "<progress" not in page
    assert "Progress: 3: rows" in page


def test_a_job_without_a_task_is_titled_with_its_queue():
    page = text_of(viewer().get(job_page(make_in_state("READY", "mail"))))
    assert re.search(r"<h1>handler of queue mail \(job \d+\)</h1>", page)


def test_only_the_newest_changes_of_all_rows_are_looked_at(monkeypatch):
    job_id, other = make_in_state("FAILED", "a"), make_in_state("FAILED", "b")
    client = viewer("discard_job")
    act(client, "discard", job_id)
    assert "discard (was FAILED)" in text_of(client.get(job_page(job_id)))
    monkeypatch.setattr(history, "LOOKED_AT", 1)
    act(client, "discard", other)
    assert "Last changes" not in text_of(client.get(job_page(job_id)))
    assert "Last changes" in text_of(client.get(job_page(other)))


def test_characters_of_four_bytes_are_shown_as_they_are():
    family = "\U0001f469\U0001f467"
    made = tasks.greet.using(tags=[family]).enqueue(family, 1)
    fail(claim_one("default"), error=ValueError(family), retry=False)
    assert text_of(viewer("view_payload").get(job_page(made.id))).count(family) >= 4
