"""Pages of lists that are in the order of several columns."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.options import IncorrectLookupParameters
from django.utils import timezone

from jobqueue.admin.page.keyset import Keyset
from jobqueue.models import FailureNote, IdempotencyRecord, OutboxEvent
from tests.admin.helpers import root, text_of

pytestmark = pytest.mark.django_db


def link(page, path, kind):
    found = re.search(rf'<a href="([^"]*)" class="jobqueue-to-{kind}"', page)
    return found and path + found[1].replace("&amp;", "&")


def pages(client, path, pattern):
    """What the pattern finds on each page, forward to the last one and back to the first one."""
    page = text_of(client.get(path))
    forward, back = [re.findall(pattern, page)], []
    while address := link(page, path, "next"):
        page = text_of(client.get(address))
        forward.append(re.findall(pattern, page))
    while address := link(page, path, "prev"):
        page = text_of(client.get(address))
        back.append(re.findall(pattern, page))
    return forward, back


def test_records_with_the_same_instant_are_each_on_one_page(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.idempotency.IdempotencyRecordAdmin.list_per_page", 2)
    now = timezone.now()
    for n in range(5):
        # Three expire at the same instant.
        IdempotencyRecord.objects.create(
            digest=bytes([n]) * 32, label=f"key-{n}", expires_at=now + timedelta(hours=max(1, n - 1))
        )
    forward, back = pages(root(), "/admin/jobqueue/idempotencyrecord/", r">(key-\d)<")
    assert forward == [["key-4", "key-3"], ["key-2", "key-1"], ["key-0"]]
    assert back == [["key-2", "key-1"], ["key-4", "key-3"]]


def test_notes_are_in_two_directions_at_once(monkeypatch):
    monkeypatch.setattr("jobqueue.admin.dead_letters.failures.FailureNoteAdmin.list_per_page", 2)
    now = timezone.now()
    for letter, hours in (("c", 1), ("a", 1), ("b", 1), ("d", 2)):
        FailureNote.objects.create(fingerprint=letter * 16, note=f"n-{letter}", updated_at=now + timedelta(hours=hours))
    forward, back = pages(root(), "/admin/jobqueue/failurenote/", r">(n-\w)<")
    assert forward == [["n-d", "n-a"], ["n-b", "n-c"]]
    assert back == [["n-d", "n-a"]]


def test_a_cursor_is_bound_to_the_order_it_was_made_for():
    one, other = Keyset(OutboxEvent, ["-pk"]), Keyset(OutboxEvent, ["lane", "pk"])
    text = one.sign([5], back=False)
    assert one.read(text).values == (5,)
    with pytest.raises(IncorrectLookupParameters):
        other.read(text)
