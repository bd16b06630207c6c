"""Texts that do harm where a page does not escape or cut them, in every place of a job and beside it."""

from __future__ import annotations

import re

from django.db import transaction
from django.urls import reverse
from django.utils.html import escape

from jobqueue import dead_letters, flow
from jobqueue.admin.page import formatting
from jobqueue.db.clock import UtcNow
from jobqueue.models import JobTag, OutboxEvent
from jobqueue.outbox import publish
from tests.admin.helpers import HOSTILE, JOBS, SCRIPT, Inline, job_page
from tests.admin.test_hostile import ATTRIBUTE, hostile_job
from tests.factories import job, set_columns

MEBIBYTE = 1024 * 1024
VALUES = {
    **{f"hostile {number}": text for number, text in enumerate(HOSTILE)},
    "comment": "--><svg onload=alert(1)><!--",
    "template": "{% load x %}{{ request.user.password }}",
    "right to left": "\u202egnp.exe\u202c \u0627\u0644\u0639",
    "four bytes": "\U0001f469\u200d\U0001f467 \U00020bb7",
}
PLACES = (
    "key of a payload", "value of a payload", "result", "queue", "task", "tag", "wait reason", "worker", "cause",
    "last line of an error", "line of an error", "dedupe key", "class of an error", "note on a failure",
    "reason of a pause", "payload of an event", "error of an event", "filter in the address", "search in the address",
)  # fmt: skip


def fill(text):
    """A failed job, an event and a paused queue with `text` wherever it fits; the pages that show them."""
    job_id = hostile_job(text)
    tag = text[:64]
    JobTag.objects.create(job_id=job_id, tag=tag)
    dead_letters.note(job(job_id).fingerprint or "0" * 16, text, by="root")
    flow.pause(f"paused-{job_id}", reason=text[:200], by="root")
    with transaction.atomic():
        event_id = publish("order.paid", {text: [text]})
    OutboxEvent.objects.filter(pk=event_id).update(due_at=None, failed_at=UtcNow(), last_error=f"{text}\n{text}")
    queues = reverse("admin:jobqueue_flowrule_changelist")
    return [
        *((JOBS, query) for query in ({}, {"state": "failed"}, {"queue": text}, {"q": text}, {"tag": tag})),
        (job_page(job_id), {}),
        (reverse("admin:app_list", args=["jobqueue"]), {}),
        (queues, {}),
        (reverse("admin:jobqueue_redrive_changelist"), {}),
        (reverse("admin:jobqueue_failurenote_changelist"), {}),
        (reverse("admin:jobqueue_outboxevent_changelist"), {}),
        (reverse("admin:jobqueue_outboxevent_change", args=[event_id]), {}),
    ]


def wrong(page, text):
    """What a page does with `text` but show it."""
    seen = Inline(page)
    pictures = [attrs for tag, attrs in seen.tags if tag in ("img", "svg")]
    found = [*seen.found, *(one for one in pictures if "onload" in one or one.get("src") == "x")]
    found += ["a script"] if SCRIPT in page else []
    found += ["text turned round"] if re.search("[\u202a-\u202e\u2066-\u2069]", ATTRIBUTE.sub("", page)) else []
    return found


def shown(page, text):
    """How often a page shows `text` as text."""
    return page.count(escape(formatting.plain(text)))


def large():
    """A failed job whose payload and result have a mebibyte each, and whose error is long; its page and the list."""
    job_id = hostile_job("x")
    error = ("<b>" + "y" * 1020 + "\n") * 50 + "ValueError: " + "e" * 5000
    set_columns(job_id, payload={"text": "<b>" * (MEBIBYTE // 3)}, result=["z" * MEBIBYTE], last_error=error)
    return [(JOBS, {}), (job_page(job_id), {})]
