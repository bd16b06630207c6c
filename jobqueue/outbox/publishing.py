"""publish(): an event that is there if and only if the caller's transaction commits."""

from __future__ import annotations

from typing import Any

from django.db import connections

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.fields import Encoded
from jobqueue.db.holding import hold_key
from jobqueue.db.open_transaction import in_callers_transaction
from jobqueue.exceptions import PayloadError, TransactionRequired
from jobqueue.models import OutboxEvent, OutboxKey
from jobqueue.names import check_key, check_topic
from jobqueue.outbox.lanes import key_lane, topic_lane
from jobqueue.payload import JSON, encode

_COLUMNS = ["topic", "key", "payload", "lane"]


def publish(topic: str, payload: JSON, key: str | bytes | None = None, *, using: str | None = None) -> int:
    """Write an event into the outbox; its id. It is delivered, at least once, if the caller's transaction commits.

    Events of one `key` (1-64 bytes, whatever their topics) are delivered in the order of their commits; to make that
    order, the key stays locked until COMMIT, so publish late in a long transaction, and several keys low to high.
    Without a key there is no order, and nobody waits. Raises TransactionRequired outside transaction.atomic();
    InvalidValue, InvalidType, PayloadError, PayloadTooLarge before anything is written.
    """
    check_topic(topic)
    raw = None if key is None else check_key(key, "key")
    try:
        text = Encoded(encode(payload, max_bytes=load().max_payload_bytes))
    except RecursionError:
        raise PayloadError("payload refers to itself. Nothing was written.") from None
    alias = using or load().database
    connection = connections[alias]
    if not in_callers_transaction(connection):
        raise TransactionRequired(
            f"publish() was called outside transaction.atomic() on {alias!r}: the event could leave without the change "
            "it tells of, or the other way round. Nothing was written; call it inside the block that makes the change."
        )
    if raw is not None:
        # Others wait before they publish with this key, so that ids follow commits.
        hold_key(OutboxKey, raw, alias)
    values = [topic, raw, text, topic_lane(topic) if raw is None else key_lane(raw)]
    fields: list[Any] = [OutboxEvent._meta.get_field(name) for name in _COLUMNS]
    row = [field.get_db_prep_save(value, connection) for field, value in zip(fields, values, strict=True)]
    return vendor(alias).insert(connection, OutboxEvent._meta.db_table, _COLUMNS, [row])[0]
