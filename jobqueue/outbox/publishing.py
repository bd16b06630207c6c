"""publish() writes an event in the caller's transaction."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from django.db import connections

from jobqueue.base.payload import JSON, encode
from jobqueue.base.validation import check_key, check_topic
from jobqueue.conf import load
from jobqueue.db import vendor_of
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.prepared import PreparedInsert
from jobqueue.db.upsert import hold_key
from jobqueue.exceptions import TransactionRequired
from jobqueue.models import HeldKey, OutboxEvent
from jobqueue.otel import publishing
from jobqueue.outbox.statements import key_digest, key_lane, topic_lane

_KEY: Any = OutboxEvent._meta.get_field("key")


def publish(topic: str, payload: JSON, key: str | bytes | None = None, *, using: str | None = None) -> int:
    """Write an event into the outbox and return its id. It is delivered at least once if the transaction commits.

    Events of one `key` (1-64 bytes, of any topics) are delivered in the order of their commits. For this order the key
    stays locked until COMMIT: publish late in a long transaction, and several keys from the lowest to the highest.
    Without a key there is no order, and nobody waits. Raises TransactionRequired outside transaction.atomic();
    InvalidValue, InvalidType, PayloadError, PayloadTooLarge before anything is written.
    """
    name, lane = _known_topic(topic if type(topic) is str else check_topic(topic))
    raw = None if key is None else check_key(key, "key")
    text = encode(payload, max_bytes=load().max_payload_bytes)
    alias = alias_of(using)
    connection = connections[alias]
    if not in_callers_transaction(connection):
        raise TransactionRequired(
            f"publish() was called outside transaction.atomic() on {alias!r}: the event could be sent without the "
            "change it reports, or the change be made without the event. Nothing was written; call it inside the block "
            "that makes the change."
        )
    found = vendor_of(connection)
    values = [found.text_parameter(connection, name), found.json_parameter(connection, text)]
    with explain_missing_table(alias), publishing(name) as span:
        if raw is None:
            event_id = _insert(alias).run(connection, [*values, lane])
        else:
            # Other publishers of this key wait here, so that ids follow commits.
            hold_key(HeldKey, key_digest(raw), alias)
            stored = _KEY.get_db_prep_save(raw, connection)
            event_id = _insert(alias, "key").run(connection, [*values, key_lane(raw), stored])
        span.wrote([event_id], 1)
        return event_id


@lru_cache(maxsize=1000)
def _known_topic(topic: str) -> tuple[str, int]:
    """The checked topic and its lane."""
    return check_topic(topic), topic_lane(topic)


@cache
def _insert(using: str, *key: str) -> PreparedInsert:
    return PreparedInsert(using, OutboxEvent._meta.db_table, ["topic", "payload", "lane", *key])
