"""The statements of a relay, each built once per database: building one costs more than running it.

Every write to leased events proves the lease by its token in the WHERE clause; after a lost lease it changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import (
    BigIntegerField,
    BooleanField,
    ExpressionWrapper,
    F,
    FloatField,
    Max,
    Q,
    QuerySet,
    TextField,
)

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import AnyOf, Keys, Slot
from jobqueue.db.fields import TokenField, UtcDateTimeField
from jobqueue.db.prepared import Prepared, prepare_change_by_key, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.db.statements import LooseScan
from jobqueue.db.time_limit import watched
from jobqueue.failures import describe, storable
from jobqueue.models import OutboxEvent
from jobqueue.outbox.destinations.base import Event

_LANE, _SINCE = Slot("lane", BigIntegerField()), Slot("since", BigIntegerField())
_TOKEN, _SECONDS = Slot("token", TokenField()), Slot("seconds", FloatField())
_ERROR = Slot("error", TextField())
#: last_error of an event that waits for a route or a subscriber
NO_DESTINATION = (
    "no route and no subscriber for this topic. The event waits, without a charge, and its key too. Add a "
    "@subscriber to <app>/tasks.py, route the topic in JOBQUEUE['OUTBOX']['ROUTES'], or skip the event."
)
#: last_error of an event whose destination is down; the cause is added
DESTINATION_DOWN = "the destination cannot be reached. The event waits, without a charge, and its key too: "
#: what the verbs of a relay write to leased events
_CHANGES: dict[str, dict[str, object]] = {
    "mark_processed": {"lane": None, "due_at": None, "lock_token": None, "processed_at": UtcNow()},
    "release": {"lock_token": None, "due_at": UtcNowPlus(_SECONDS)},
    "park": {"lock_token": None, "due_at": UtcNowPlus(_SECONDS), "last_error": NO_DESTINATION},
    "put_off": {"lock_token": None, "due_at": UtcNowPlus(_SECONDS), "last_error": _ERROR},
    "renew": {"due_at": UtcNowPlus(_SECONDS)},
}
LOWEST = -(2**63)
#: the most lanes that one statement reads
WINDOW = 1000


class EventLeaseLost(Exception):
    """The lease of a delivery has ended: another relay may have its events, and this one must not send more of them."""


class EventRow(NamedTuple):
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
    """Lock those of the events `ids` that are due; skip those that others have locked."""
    due = _by_key(using).filter(due_at__lte=UtcNow())
    return prepare_rows(vendor(using).lock_rows(_contents(vendor(using).force_index(due, "PRIMARY"))))


@cache
def read(using: str) -> Prepared:
    """Read the events `ids`, in order."""
    return prepare_rows(_contents(vendor(using).force_index(_by_key(using), "PRIMARY")).order_by("id"))


@cache
def waits(using: str) -> Prepared:
    """Read when the events `ids` are due, and the time: id, due, now."""
    rows: QuerySet[Any] = vendor(using).force_index(_by_key(using), "PRIMARY")
    return prepare_rows(rows.annotate(due=Selected("due_at"), now=Selected(UtcNow())).values_list("id", "due", "now"))


@lru_cache(maxsize=256)
def published(using: str, limit: int) -> Prepared:
    """Read pending events with a key and an id above `since`, in order: id, lane."""
    rows = OutboxEvent.objects.using(using).filter(id__gt=_SINCE, lane__gt=0)
    first: QuerySet[Any] = vendor(using).force_index(rows, "PRIMARY").order_by("id")
    return prepare_rows(first.values_list("id", "lane")[:limit])


def last_id(using: str) -> int:
    """The highest id so far; 0 without events."""
    return OutboxEvent.objects.using(using).aggregate(last=Max("id"))["last"] or 0


@lru_cache(maxsize=256)
def front(using: str, share: int, topics: tuple[str, ...] | None) -> Prepared:
    """Read the first pending events of `lane` from the id `since` on: id, lane, whether due, token."""
    rows = OutboxEvent.objects.using(using).filter(lane=_LANE, id__gte=_SINCE)
    if topics is not None:
        rows = rows.filter(topic__in=topics)
    due = ExpressionWrapper(Q(due_at__lte=UtcNow()), output_field=BooleanField())
    first: QuerySet[Any] = vendor(using).force_index(rows, "ix_outbox_lane").order_by("id")
    return prepare_rows(first.annotate(due=due).values_list("id", "lane", "due", "lock_token")[:share])


@cache
def first(using: str) -> Prepared:
    """Read the first pending event of `lane`: id, lane, whether it is stuck until a person acts."""
    rows: QuerySet[Any] = OutboxEvent.objects.using(using).filter(lane=_LANE)
    stuck = Q(failed_at__isnull=False) | Q(last_error__isnull=False, last_error__startswith=NO_DESTINATION)
    rows = vendor(using).force_index(rows, "ix_outbox_lane").order_by("id")
    rows = rows.annotate(stuck=ExpressionWrapper(stuck, output_field=BooleanField()))
    return prepare_rows(rows.values_list("id", "lane", "stuck")[:1])


@lru_cache(maxsize=256)
def lock_due(using: str, limit: int, *, since: bool) -> Prepared:
    """Lock the events of `lane` that are due (at `since` or later), first due first; skip what others have locked."""
    rows = OutboxEvent.objects.using(using).filter(lane=_LANE, due_at__lte=UtcNow()).order_by("due_at", "id")
    due = rows.filter(due_at__gte=Slot("since", UtcDateTimeField())) if since else rows
    return prepare_rows(vendor(using).lock_rows(_contents(vendor(using).force_index(due, "ix_outbox_due")), limit))


@cache
def lease(using: str, *, lapsed: bool) -> Prepared:
    """Lease the events `ids`, if they are due, under `token` for `seconds`.

    `lapsed`: charge them an attempt, because their last relay did not settle them.
    """
    charge: dict[str, object] = {"attempts": F("attempts") + 1} if lapsed else {}
    rows = _by_key(using).filter(due_at__lte=UtcNow())
    return prepare_change_by_key(rows, {"lock_token": _TOKEN, "due_at": UtcNowPlus(_SECONDS), **charge})


def mark_processed(ids: Collection[int], token: bytes, *, using: str) -> int:
    """Mark these events as delivered; the number of them that were still leased under `token`."""
    return _change("mark_processed", ids, token, using)


def release(ids: Collection[int], token: bytes, *, using: str) -> int:
    """End the lease of events that were not delivered, without a charge; the number that were still leased."""
    return _change("release", ids, token, using, seconds=0.0)


def put_off(ids: Collection[int], token: bytes, *, using: str, delay_seconds: float, reason: str) -> int:
    """Do the same for events whose destination is down, until `delay_seconds` from now, and note `reason` on them."""
    text = storable(DESTINATION_DOWN + reason)
    return _change("put_off", ids, token, using, seconds=delay_seconds, error=text)


def park(ids: Collection[int], token: bytes, *, using: str, delay_seconds: float) -> int:
    """Do the same for events without a route and a subscriber."""
    return _change("park", ids, token, using, seconds=delay_seconds)


def renew(ids: Collection[int], token: bytes, *, lease_seconds: float, using: str) -> bool:
    """Extend the lease by `lease_seconds` from now; False if any of the events is no longer leased under `token`."""
    return _change("renew", ids, token, using, seconds=lease_seconds) == len(ids)


def fail(event: Event, token: bytes, error: BaseException | str, *, using: str) -> float | None:
    """Charge a failed delivery: the seconds until the next one, or None for a dead letter. Raises EventLeaseLost."""
    limits = load().outbox_settings
    if event.attempt >= limits.max_attempts:
        dead_letter(event, token, error, using=using)
        return None
    delay = load().backoff.delay_seconds(event.attempt)
    _settle(event, token, error, {"lock_token": None, "due_at": UtcNowPlus(delay)}, using)
    return delay


def dead_letter(event: Event, token: bytes, error: BaseException | str, *, using: str) -> None:
    """End the attempts of an event. With a key and ON_KEY_FAILURE "block" its key waits. Raises EventLeaseLost."""
    leaves_lane = event.key is None or load().outbox_settings.on_key_failure == "skip"
    changes: dict[str, object] = {"lock_token": None, "due_at": None, "failed_at": UtcNow()}
    _settle(event, token, error, changes | ({"lane": None} if leaves_lane else {}), using)


def _settle(event: Event, token: bytes, error: BaseException | str, changes: dict[str, object], using: str) -> None:
    held = OutboxEvent.objects.using(using).filter(pk=event.id, lock_token=token)
    charged = changes | {"attempts": event.attempt, "last_error": describe(error)}
    with watched(connections[using]):
        found = retry_transient("relay", lambda: vendor(using).update_by_key(held, charged), using=using)
    if not found:
        raise EventLeaseLost


def _change(verb: str, ids: Collection[int], token: bytes, using: str, **values: float | str) -> int:
    if not ids:
        return 0
    statement = _statement(verb, using)
    with watched(connections[using]):
        return retry_transient("relay", lambda: statement.change(ids=sorted(ids), token=token, **values), using=using)


@cache
def _statement(verb: str, using: str) -> Prepared:
    return prepare_change_by_key(_by_key(using).filter(lock_token=_TOKEN), _CHANGES[verb])


def _by_key(using: str) -> QuerySet[OutboxEvent]:
    return OutboxEvent.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))


def _contents(rows: QuerySet[OutboxEvent]) -> QuerySet[Any]:
    read_fast = rows.annotate(made=Selected("created_at"), due=Selected("due_at"))
    return read_fast.values_list(*EventRow._fields)


def key_lane(key: bytes) -> int:
    """1 to 2**63 - 1. Two keys with the same number (one pair in 10**19) wait for each other needlessly."""
    return _number(key_digest(key))


def key_digest(key: bytes) -> bytes:
    """The name of the key's row in job_key. No queue name begins with a NUL, so no ordering key has the same one."""
    return hashlib.sha256(b"\0" + key).digest()


def lane_of(event: Event) -> int:
    """The lane of an event that was not skipped."""
    return topic_lane(event.topic) if event.key_bytes is None else key_lane(event.key_bytes)


def topic_lane(topic: str) -> int:
    """-(2**63 - 1) to -1."""
    return -_number(hashlib.sha256(b"t" + topic.encode()).digest())


def heads(after: int, *, using: str, limit: int = WINDOW) -> dict[int, int]:
    """Read up to `limit` lanes above `after` that have pending events, in order, each with the id of its first one.

    One index seek per lane at any backlog. Leased, waiting and blocked events count as pending. Locks nothing.
    """
    connection = connections[using]
    table = connection.ops.quote_name(OutboxEvent._meta.db_table)
    with connection.cursor() as cursor:
        sql = vendor(using).loose_scan_sql(LooseScan(table, ["lane"], "ix_outbox_lane", after=True, with_id=True))
        cursor.execute(sql, [after, limit])
        return dict(cursor.fetchall())


def head_events(*, using: str, limit: int = WINDOW, last_error_begins: str | None = None) -> list[tuple[int, str, int]]:
    """The first events of up to `limit` lanes that are no dead letters: id, topic, lane, in the order of the ids.

    `last_error_begins`: only those whose last error begins with this text, which has no wildcards of LIKE.
    """
    connection = connections[using]
    table = connection.ops.quote_name(OutboxEvent._meta.db_table)
    error = "" if last_error_begins is None else " AND e.last_error LIKE %s"
    sql = vendor(using).first_rows_sql(table, "lane", "ix_outbox_lane", "topic", f"e.failed_at IS NULL{error}")
    with connection.cursor() as cursor:
        cursor.execute(sql, [LOWEST, limit, *([f"{last_error_begins}%"] if error else [])])
        return [(event_id, str(name), lane) for event_id, name, lane in cursor.fetchall() if name is not None]


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1 or 1
