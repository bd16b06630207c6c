"""The timeline of a job's page: what happened when, and how long it took."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from jobqueue.admin.jobs import timeline as timelines
from jobqueue.admin.jobs.page import read_attempts
from jobqueue.admin.jobs.timeline import Segment, draw, timeline
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import ack, cancel, fail, reap, release, snooze
from tests.admin.helpers import HOSTILE, Inline, job_page, root, text_of
from tests.factories import claim_one, expire, job, make_in_state, make_job, set_columns

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def told(job_id, now=None):
    """The timeline of a job, seen at an instant."""
    found = Job.objects.annotate(now=UtcNow()).get(pk=job_id)
    if now is not None:
        found.now = now
    return timeline(found, read_attempts(job_id))


def words(job_id, now=None):
    return [event.word for event in told(job_id, now).events]


def attempt(job_id, number, began, ended, **columns):
    """An attempt that failed, with these times."""
    plain = {"fence": number, "worker": "web-1:211:5f/1.1", "cause": "data", "error_class": "shop.Oops", "error": "no"}
    JobAttempt.objects.create(
        job_id=job_id, attempt=number, started_at=began, ended_at=ended, **(plain | columns)
    )  # fmt: skip


def test_a_job_that_failed_twice_and_was_done_tells_each_run_with_its_times():
    job_id = make_in_state("DONE")
    attempt(job_id, 1, at(2), at(5))
    attempt(job_id, 2, at(35), at(36), cause="lease lost")
    set_columns(job_id, created_at=at(0), run_at=at(90), last_started_at=at(94), finished_at=at(96.5), attempts=2,
                last_worker="web-2:7:ab/2.1")  # fmt: skip
    found = told(job_id, at(100))
    assert [event.word for event in found.events] == [
        "Enqueued", "Attempt 1 failed", "Attempt 2 failed", "Due", "Attempt 3 succeeded", "Done",
    ]  # fmt: skip
    assert found.events[1].details == ["2s after it was enqueued", "ran 3s", "web-1:211", "Oops"]
    assert found.events[2].details == ["30s after the run before", "ran 1s", "web-1:211", "Oops"]
    assert found.events[4].details == ["4s after it was due", "ran 2.5s", "web-2:7"]
    assert found.events[5].details == ["1m 36s after it was enqueued"]
    assert [event.ago for event in found.events][:2] == ["1m 40s ago", "1m 38s ago"]


def test_a_waiting_job_tells_when_it_is_due_and_when_it_expires():
    job_id = make_job(run_at=UtcNowPlus(600), expires_at=UtcNowPlus(3600))
    found = told(job_id)
    assert [event.word for event in found.events] == ["Enqueued", "Due", "Expires"]
    assert found.events[1].ago.startswith("in ")
    assert "jobqueue-bar-later" in found.bar


def test_a_job_that_waits_for_nothing_but_a_worker_tells_that_it_was_enqueued():
    assert words(make_job()) == ["Enqueued"]


def test_a_running_job_tells_for_how_long():
    job_id = make_job()
    claim_one(worker="web-1:211:5f/1.1")
    now = job(job_id).locked_at + timedelta(seconds=90)
    run = told(job_id, now).events[-1]
    assert (run.word, run.kind) == ("Attempt 1 runs", "running")
    assert run.details[1:] == ["running for 1m 30s", "web-1:211"]


def test_a_lost_run_a_snoozed_one_and_one_that_was_given_back_are_told_apart():
    lost, slept, back = make_job("a"), make_job("b"), make_job("c")
    expire(claim_one("a"))
    reap()
    snooze(claim_one("b"), delay_seconds=60)
    release(claim_one("c"))
    assert "Attempt 1 was lost" in words(lost)
    assert "Attempt 1 was put back" in words(slept)
    assert "Attempt 1 was put back" in words(back)


def test_a_job_that_was_canceled_says_whether_it_ran():
    waited, ran = make_job("a"), make_job("b")
    cancel(waited)
    lease = claim_one("b")
    cancel(ran)
    release(lease)
    assert words(waited) == ["Enqueued", "Canceled"]
    assert words(ran) == ["Enqueued", "Attempt 1 was stopped", "Asked to stop", "Canceled"]


def test_a_job_that_expired_is_not_said_to_be_canceled():
    job_id = make_in_state("CANCELED")
    set_columns(job_id, cause="expired")
    assert words(job_id) == ["Enqueued", "Expired"]


def test_a_failed_job_ends_with_its_failure():
    job_id = make_in_state("FAILED")
    assert words(job_id) == ["Enqueued", "Attempt 1 failed", "Failed for good"]
    JobAttempt.objects.all().delete()
    assert words(job_id) == ["Enqueued", "Attempt 1 failed", "Failed for good"]


def test_of_many_attempts_the_last_ones_are_told():
    job_id = make_in_state("DONE")
    for number in range(1, 15):
        attempt(job_id, number, at(10 * number), at(10 * number + 1))
    set_columns(job_id, created_at=at(0), run_at=at(150), last_started_at=at(150), finished_at=at(152), attempts=14)
    found = told(job_id, at(200))
    assert found.earlier == "5 earlier attempts are not shown."
    runs = [event.word for event in found.events if event.word.startswith("Attempt")]
    assert len(runs) == timelines.RUNS_SHOWN
    assert (runs[0], runs[-1]) == ("Attempt 6 failed", "Attempt 15 succeeded")
    assert found.events[1].details[0] == "9s after the run before"


def test_an_attempt_without_a_start_is_told_by_its_end():
    job_id = make_in_state("FAILED")
    JobAttempt.objects.update(started_at=None, worker=None, error_class="")
    assert "Attempt 1 failed" in words(job_id)


def test_clocks_that_went_back_make_no_negative_times():
    job_id = make_in_state("DONE")
    set_columns(job_id, created_at=at(60), run_at=at(60), last_started_at=at(30), finished_at=at(10))
    found = told(job_id, at(0))
    assert not re.search(r"-\d", " ".join(detail for event in found.events for detail in event.details))
    assert found.bar


def test_runs_are_seen_in_the_bar_however_short_they_are():
    bar = draw([Segment("wait", 86_400.0, "waited"), Segment("failed", 0.001, "ran"), Segment("wait", 5.0, "waited")])
    found = re.findall(r'<rect class[^>]* x="([\d.]+)%"[^>]*width="([\d.]+)%"', bar)
    places = [(float(x), float(width)) for x, width in found]
    assert len(places) == 3
    assert places[1][1] > 1
    assert places[0][1] > 90
    assert abs(sum(width for _x, width in places) - 100) < 0.1
    assert places[2][0] + places[2][1] <= 100.01


def test_failed_runs_are_hatched_and_the_bar_is_hidden_from_those_who_read_the_list():
    bar = draw([Segment("failed", 1.0, "a <b>"), Segment("done", 1.0, "c")])
    assert bar.count("url(#jobqueue-bar-hatch)") == 1
    assert 'aria-hidden="true"' in bar
    assert "a &lt;b&gt;" in bar
    assert draw([]) == ""


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_workers_and_errors_are_text(text):
    job_id = make_in_state("FAILED")
    JobAttempt.objects.update(worker=text, error_class=text, cause=text[:16])
    page = text_of(root().get(job_page(job_id)))
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert Inline(page).found == []


def test_the_timeline_is_a_list_with_a_bar():
    job_id = make_job()
    fail(claim_one(), error=ValueError("no"), delay_seconds=0)
    ack(claim_one())
    page = text_of(root().get(job_page(job_id)))
    part = page.partition('id="timeline"')[2].partition("</section>")[0]
    assert part.count("<li ") == len(words(job_id)) == 4
    assert words(job_id)[-2:] == ["Attempt 2 succeeded", "Done"]
    assert part.count("<svg") == 1
