"""Old events, key rows and idempotency records are deleted, in batches; nothing that is still needed."""

import pytest
from django.test import override_settings

from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance import cleaner
from jobqueue.models import HeldKey, IdempotencyRecord, OutboxEvent
from jobqueue.outbox import discard, publish
from jobqueue.outbox.statements import key_digest
from tests.outbox.helpers import drain, event, say
from tests.races.actors import holding
from tests.settings import VENDOR

plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)


@plain
def test_delivered_events_are_deleted_by_age_in_batches_and_others_stay(listen):
    listen("t")
    old = [say("t", n) for n in range(5)]
    drain()
    OutboxEvent.objects.filter(pk__in=old).update(processed_at=UtcNowPlus(-604_801))
    fresh = say("t", "fresh")
    drain()
    waiting, dead = say("t", "waiting", "k"), say("t", "dead_letter")
    OutboxEvent.objects.filter(pk__in=[waiting, dead]).update(created_at=UtcNowPlus(-10_000_000))
    OutboxEvent.objects.filter(pk=dead).update(lane=None, failed_at=UtcNowPlus(-10_000_000))
    gone = say("t", "discarded")
    OutboxEvent.objects.filter(pk=gone).update(lane=None, failed_at=UtcNowPlus(-1))
    assert discard(gone)
    assert cleaner.CLEANERS["events"].run_once(load(), using="default", limit=2).total() == 5
    assert OutboxEvent.objects.filter(pk=gone).update(processed_at=UtcNowPlus(-604_801))
    assert cleaner.CLEANERS["events"].run_once(load(), using="default", limit=2).total() == 1
    assert set(OutboxEvent.objects.values_list("pk", flat=True)) == {fresh, waiting, dead}


@plain
def test_retention_none_keeps_all(listen):
    listen("t")
    found = event(say("t", 1))
    drain()
    OutboxEvent.objects.filter(pk=found.pk).update(processed_at=UtcNowPlus(-10_000_000))
    with override_settings(JOBQUEUE={"OUTBOX": {"RETENTION_SECONDS": None}}):
        assert cleaner.CLEANERS["events"].run_once(load(), using="default").total() == 0


@plain
def test_key_rows_are_deleted_after_a_day_and_made_again():
    for key in ("a", "b", "c"):
        say("t", 1, key)
    HeldKey.objects.filter(digest__in=[key_digest(b"a"), key_digest(b"b")]).update(created_at=UtcNowPlus(-86_500))
    assert cleaner.CLEANERS["keys"].run_once(load(), using="default", limit=1).total() == 2
    say("t", 2, "a")
    assert HeldKey.objects.count() == 2


@real
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock for the whole database")
def test_a_key_row_that_somebody_holds_is_left():
    say("t", 1, "a")
    HeldKey.objects.update(created_at=UtcNowPlus(-86_500))
    with holding(lambda: publish("t", 2, "a")):
        assert cleaner.CLEANERS["keys"].run_once(load(), using="default").total() == 0


@plain
def test_expired_records_are_deleted_in_batches():
    for n in range(5):
        IdempotencyRecord.objects.create(digest=bytes([n]), label=str(n), expires_at=UtcNowPlus(60 if n == 4 else -1))
    assert cleaner.CLEANERS["records"].run_once(load(), using="default", limit=2).total() == 4
    assert IdempotencyRecord.objects.get().label == "4"


@plain
def test_one_pass_is_bounded_and_the_next_one_goes_on():
    for n in range(5):
        IdempotencyRecord.objects.create(digest=bytes([n]), label=str(n), expires_at=UtcNowPlus(n - 10))
    assert cleaner.CLEANERS["records"].run_once(load(), using="default", limit=4, seconds=0).total() == 4
    # The longest expired first.
    assert IdempotencyRecord.objects.get().label == "4"
    assert cleaner.CLEANERS["records"].run_once(load(), using="default", limit=2).total() == 1
