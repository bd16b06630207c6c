"""The statements of a relay, each built once per database: building one costs more than running it."""

from __future__ import annotations

from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from django.db.models import BigIntegerField, BooleanField, ExpressionWrapper, F, FloatField, Max, Q, QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import AnyOf, Keys, Slot
from jobqueue.db.fields import TokenField, UtcDateTimeField
from jobqueue.db.prepared import Prepared, prepare_change_by_key, prepare_rows
from jobqueue.models import OutboxEvent

_LANE, _SINCE = Slot("lane", BigIntegerField()), Slot("since", BigIntegerField())
_TOKEN, _SECONDS = Slot("token", TokenField()), Slot("seconds", FloatField())
_DELIVERED: dict[str, Any] = {"lane": None, "due_at": None, "lock_token": None, "processed_at": UtcNow()}


class Row(NamedTuple):
    """An event as a claim reads it."""

    pk: int
    lane: int
    topic: str
    key: bytes | None
    payload: Any
    attempts: int
    lock_token: bytes | None
    made: datetime
    due: datetime


@cache
def lock_heads(using: str) -> Prepared:
    """Lock those of the events `ids` that are due, but for those that others have locked."""
    due = _by_key(using).filter(due_at__lte=UtcNow())
    return prepare_rows(vendor(using).lock_rows(_contents(vendor(using).force_index(due, "PRIMARY"))))


@cache
def read(using: str) -> Prepared:
    """The events `ids`, in order."""
    return prepare_rows(_contents(vendor(using).force_index(_by_key(using), "PRIMARY")).order_by("id"))


@cache
def waits(using: str) -> Prepared:
    """When the events `ids` are due, and what time it is: id, due, now."""
    rows: QuerySet[Any] = vendor(using).force_index(_by_key(using), "PRIMARY")
    return prepare_rows(rows.annotate(due=Selected("due_at"), now=Selected(UtcNow())).values_list("id", "due", "now"))


@lru_cache(maxsize=256)
def published(using: str, limit: int) -> Prepared:
    """Pending events with a key and an id above `since`, in order: id, lane."""
    rows = OutboxEvent.objects.using(using).filter(id__gt=_SINCE, lane__gt=0)
    first: QuerySet[Any] = vendor(using).force_index(rows, "PRIMARY").order_by("id")
    return prepare_rows(first.values_list("id", "lane")[:limit])


def last_id(using: str) -> int:
    """The highest id so far; 0 without events."""
    return OutboxEvent.objects.using(using).aggregate(last=Max("id"))["last"] or 0


@lru_cache(maxsize=256)
def front(using: str, share: int, topics: tuple[str, ...] | None) -> Prepared:
    """The first pending events of `lane` from the id `since` on: id, lane, whether due, token."""
    rows = OutboxEvent.objects.using(using).filter(lane=_LANE, id__gte=_SINCE)
    if topics is not None:
        rows = rows.filter(topic__in=topics)
    due = ExpressionWrapper(Q(due_at__lte=UtcNow()), output_field=BooleanField())
    first: QuerySet[Any] = vendor(using).force_index(rows, "ix_outbox_lane").order_by("id")
    return prepare_rows(first.annotate(due=due).values_list("id", "lane", "due", "lock_token")[:share])


@lru_cache(maxsize=256)
def lock_due(using: str, limit: int) -> Prepared:
    """Lock the events of `lane` that are due, first due first, but for those that others have locked."""
    return _locking(_due(using), limit, using)


@lru_cache(maxsize=256)
def lock_due_from(using: str, limit: int) -> Prepared:
    """The same, of those that were due at `since` or later."""
    return _locking(_due(using).filter(due_at__gte=Slot("since", UtcDateTimeField())), limit, using)


@cache
def lease(using: str) -> Prepared:
    """Lease the events `ids`, if they are due, under `token` for `seconds`."""
    rows = _by_key(using).filter(due_at__lte=UtcNow())
    return prepare_change_by_key(rows, {"lock_token": _TOKEN, "due_at": UtcNowPlus(_SECONDS)})


@cache
def lease_lapsed(using: str) -> Prepared:
    """The same, and charge them for the relay that fell silent."""
    changes = {"lock_token": _TOKEN, "due_at": UtcNowPlus(_SECONDS), "attempts": F("attempts") + 1}
    return prepare_change_by_key(_by_key(using).filter(due_at__lte=UtcNow()), changes)


@cache
def mark_processed(using: str) -> Prepared:
    """Those of `ids` that are leased under `token` were delivered."""
    return prepare_change_by_key(held(using), _DELIVERED)


@cache
def give_back(using: str) -> Prepared:
    """End the lease of those of `ids` that are leased under `token`; they are due in `seconds`."""
    return prepare_change_by_key(held(using), {"lock_token": None, "due_at": UtcNowPlus(_SECONDS)})


@cache
def renew(using: str) -> Prepared:
    """Those of `ids` that are leased under `token` are so for `seconds` more."""
    return prepare_change_by_key(held(using), {"due_at": UtcNowPlus(_SECONDS)})


def held(using: str) -> QuerySet[OutboxEvent]:
    """Those of `ids` that are leased under `token`."""
    return _by_key(using).filter(lock_token=_TOKEN)


def _by_key(using: str) -> QuerySet[OutboxEvent]:
    return OutboxEvent.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))


def _due(using: str) -> QuerySet[OutboxEvent]:
    return OutboxEvent.objects.using(using).filter(lane=_LANE, due_at__lte=UtcNow()).order_by("due_at", "id")


def _locking(due: QuerySet[OutboxEvent], limit: int, using: str) -> Prepared:
    hinted = vendor(using).force_index(due, "ix_outbox_due")
    return prepare_rows(vendor(using).lock_rows(_contents(hinted))[:limit])


def _contents(rows: QuerySet[OutboxEvent]) -> QuerySet[Any]:
    read_fast = rows.annotate(made=Selected("created_at"), due=Selected("due_at"))
    return read_fast.values_list(*Row._fields)
