"""What other programs put into names, payloads and errors is text on every page."""

import json
import re

import pytest
from django.db import connection
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from jobqueue import enqueue
from jobqueue.admin.page import formatting
from jobqueue.base.payload import MAX_DEPTH
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import PayloadError
from jobqueue.models import JobAttempt, Worker
from jobqueue.transitions import ack, fail
from tests.admin.helpers import HOSTILE, JOBS, SCRIPT, WORKERS, Inline, act, job_page, root, text_of
from tests.factories import claim_one, job, make_in_state, make_job, set_columns

pytestmark = pytest.mark.django_db

#: attributes are not drawn, and must keep their exact value
ATTRIBUTE = re.compile('(?:value|aria-label)="[^"]*"')


def hostile_job(text):
    """A failed job that carries `text` wherever a job can."""
    job_id = make_in_state("FAILED", payload={text: text})
    names = {"queue": text, "task": text, "wait_reason": text, "last_worker": text, "cause": text[:16]}
    set_columns(job_id, **names, last_error=f"{text}\n{text}", dedupe_key=text.encode(), result={text: [text]})
    JobAttempt.objects.filter(job_id=job_id).update(worker=text, cause=text[:16], error=text, error_class=text)
    return job_id


def spelled(text):
    return escape(text.replace("\u202e", "\\u202e"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text_everywhere(text):
    job_id, client = hostile_job(text), root()
    held = make_job("held")
    claim_one("held", worker="w")
    set_columns(held, locked_by=text.replace("\u202e", "x"))
    act(client, "retry", job_id)
    pages = {
        "list": (client.get(JOBS), 3),
        "filtered": (client.get(JOBS, {"queue": text}), 1),
        "found": (client.get(JOBS, {"q": text}), 1),
        "job": (client.get(job_page(job_id)), 8),
        "history": (client.get(f"{JOBS}{job_id}/history/"), 0),
    }
    for name, (response, least) in pages.items():
        page = text_of(response)
        assert page.count(spelled(text)) >= least, name
        assert "\u202e" not in ATTRIBUTE.sub("", page), name
        assert not Inline(page).found, name
        assert [t for t, attrs in Inline(page).tags if t == "img" and attrs.get("src") == "x"] == [], name
        assert SCRIPT not in page, name
    assert text_of(pages["found"][0]).count("field-id") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_workers_are_shown_as_text(text):
    row = Worker.objects.create(
        name=text, host=text, pid=1, supervisor_pid=1, boot_id=text[:32], queues=text, concurrency=1, version="1"
    )
    Worker.objects.filter(pk=row.pk).update(stop_reason=text, stopped_at=UtcNow())
    client = root()
    for path in (WORKERS, f"{WORKERS}{row.pk}/change/", f"{WORKERS}{row.pk}/history/"):
        page = text_of(client.get(path))
        assert not Inline(page).found
        assert SCRIPT not in page
    assert text_of(client.get(WORKERS)).count(spelled(text)) >= 3


def test_a_safe_string_is_escaped_like_any_other():
    job_id = enqueue("q", {"html": mark_safe(SCRIPT)})
    lease = claim_one()
    assert type(lease.payload["html"]) is str
    ack(lease, result=mark_safe(SCRIPT))
    set_columns(job_id, last_error=mark_safe(SCRIPT), task=mark_safe(SCRIPT), last_worker=mark_safe(SCRIPT))
    client = root()
    for path in (JOBS, job_page(job_id)):
        assert SCRIPT not in text_of(client.get(path))
    assert text_of(client.get(job_page(job_id))).count("&lt;script&gt;") >= 4


@pytest.mark.parametrize("make", [formatting.plain, formatting.block, formatting.pretty])
def test_nothing_walks_through_the_escape_in_memory(make):
    made = make(SafeString(SCRIPT))
    assert not isinstance(made, SafeString) or SCRIPT not in made


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x9b", "\u202e", "\u2066", "\u200f", "\u2028", "\ud800", "\r"])
def test_deceiving_characters_are_spelled_out(character):
    made = formatting.plain(f"a{character}b")
    assert character not in made
    assert made.isprintable()
    made.encode()


ORDINARY = ["a\nb\tc", "\ud55c\uad6d\uc5b4", "\U0001f469\u200d\U0001f467", "e\u0301", "\u0645\u06cc\u200c\u062e"]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text):
    assert formatting.plain(text) == text


def test_a_payload_that_cannot_be_read_is_said_so():
    assert "cannot be read" in formatting.pretty(PayloadError("the stored JSON cannot be read: <b>"))
    assert "<b>" not in formatting.pretty(PayloadError("<b>"))


def test_json_that_is_deeper_than_the_indenting_encoder_goes_is_shown():
    deep = json.loads("[" * 900 + "]" * 900)
    assert "[[[" in formatting.pretty(deep).replace("\n", "").replace(" ", "")


def test_lone_surrogates_of_other_programs_do_not_break_the_page(vendor_name):
    job_id = make_job()
    if vendor_name != "sqlite":
        pytest.skip("this server refuses such JSON itself")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE job_queue SET payload = %s WHERE id = %s", ['"a\\ud800b"', job_id])
    assert "a\\ud800b" in text_of(root().get(job_page(job_id)))


def test_the_deepest_payload_that_can_be_enqueued_is_shown():
    value = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert "jobqueue-text" in text_of(root().get(job_page(enqueue("q", value))))


def test_a_dedupe_key_that_is_not_text_is_shown_and_long_values_are_cut():
    job_id = enqueue("q", "y" * 200_000, dedupe_key=b"\xff\x00<b>")
    page = text_of(root().get(job_page(job_id)))
    assert "\\xff\\x00&lt;b&gt;" in page
    assert len(page) < 100_000
    assert "y" * 100 + "..." in page


@pytest.mark.parametrize("object_id", ["abc", SCRIPT, "0", "-1", "9" * 40, "_00", "1_2F..", "%27"])
def test_an_odd_job_address_is_answered(object_id):
    response = root().get(f"{JOBS}{object_id}/change/", follow=True)
    assert response.status_code in (200, 404)
    assert SCRIPT not in response.content.decode()


def test_each_failed_attempt_opens_to_its_error():
    make_job()
    for number in (1, 2):
        lease = claim_one()
        fail(lease, error=f"first line {number}\n{SCRIPT} {number}", delay_seconds=0)
    page = text_of(root().get(job_page(lease.job_id)))
    assert page.count('<strong class="jobqueue-attempt-note">&lt;script&gt;') == 2
    assert page.count('<details class="jobqueue-attempt"') == 2
    assert page.index("first line 2") < page.index("first line 1")
    assert job(lease.job_id).attempts == 2
