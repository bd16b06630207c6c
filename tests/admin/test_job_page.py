"""What a job's page tells of progress, expiry and attempts."""

import pytest

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import JobAttempt
from jobqueue.transitions import fail
from tests.admin.helpers import HOSTILE, job_page, text_of, viewer
from tests.app import tasks
from tests.factories import claim_one, set_columns
from tests.matrix import enough_on

pytestmark = [pytest.mark.django_db, enough_on("sqlite", "postgres", why="pages; the verbs run everywhere")]


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
    assert f"{attempt.started_at:%Y-%m-%d %H:%M:%S}" in page


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


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text):
    made = tasks.greet.enqueue("ann", 1)
    set_columns(made.id, progress={"done": 1, "total": None, "note": text}, options={text: text})
    fail(claim_one("default"), error="x", log=text)
    page = text_of(viewer().get(job_page(made.id)))
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page
