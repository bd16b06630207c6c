"""publish(): an event that is there if and only if the caller's transaction commits."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from django.db import connections

from jobqueue.conf import load
from jobqueue.db import vendor_of
from jobqueue.db.alias import alias_of
from jobqueue.db.holding import hold_key
from jobqueue.db.open_transaction import in_callers_transaction
from jobqueue.db.our_tables import our_tables
from jobqueue.db.prepared import PreparedInsert
from jobqueue.exceptions import PayloadError, TransactionRequired
from jobqueue.models import OutboxEvent, OutboxKey
from jobqueue.names import check_key, check_topic
from jobqueue.outbox.lanes import key_lane, topic_lane
from jobqueue.payload import JSON, encode

_KEY: Any = OutboxEvent._meta.get_field("key")


def publish(topic: str, payload: JSON, key: str | bytes | None = None, *, using: str | None = None) -> int:
    """Write an event into the outbox; its id. It is delivered, at least once, if the caller's transaction commits.

    Events of one `key` (1-64 bytes, whatever their topics) are delivered in the order of their commits; to make that
    order, the key stays locked until COMMIT, so publish late in a long transaction, and several keys low to high.
    Without a key there is no order, and nobody waits. Raises TransactionRequired outside transaction.atomic();
    InvalidValue, InvalidType, PayloadError, PayloadTooLarge before anything is written.
    """
    name, lane = _topic(topic)
    settings = load()
    raw = None if key is None else check_key(key, "key")
    try:
        text = encode(payload, max_bytes=settings.max_payload_bytes)
    except RecursionError:
        raise PayloadError("payload refers to itself. Nothing was written.") from None
    alias = alias_of(using)
    connection = connections[alias]
    if not in_callers_transaction(connection):
        raise TransactionRequired(
            f"publish() was called outside transaction.atomic() on {alias!r}: the event could leave without the change "
            "it tells of, or the other way round. Nothing was written; call it inside the block that makes the change."
        )
    found = vendor_of(connection)
    values = [found.text_parameter(connection, name), found.json_parameter(connection, text)]
    with our_tables(alias):
        if raw is None:
            return _without_key(alias).run(connection, [*values, lane])
        # Others wait before they publish with this key, so that ids follow commits.
        hold_key(OutboxKey, raw, alias)
        return _with_key(alias).run(connection, [*values, key_lane(raw), _KEY.get_db_prep_save(raw, connection)])


def _topic(topic: object) -> tuple[str, int]:
    """The topic, checked, and its lane."""
    return _known_topic(topic) if type(topic) is str else _known_topic(check_topic(topic))


@lru_cache(maxsize=1000)
def _known_topic(topic: str) -> tuple[str, int]:
    return check_topic(topic), topic_lane(topic)


@cache
def _without_key(using: str) -> PreparedInsert:
    return PreparedInsert(using, OutboxEvent._meta.db_table, ["topic", "payload", "lane"])


@cache
def _with_key(using: str) -> PreparedInsert:
    return PreparedInsert(using, OutboxEvent._meta.db_table, ["topic", "payload", "lane", "key"])
