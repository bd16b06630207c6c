"""Rows whose primary key is a digest of what they are about: written again, they are the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby

from django.db import connections
from django.db.models import Model

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient


def digest(source: bytes, *parts: str) -> bytes:
    """The 16 bytes of a primary key; `source` is the process if the row is its own, else b""."""
    text = b"\x00".join([source, *(part.encode("utf-8", "surrogatepass") for part in parts)])
    return hashlib.sha256(text).digest()[:16]


def write_rows(rows: Sequence[Model], changing: Sequence[str], *, using: str) -> None:
    """Insert `rows`; of those that exist, write the columns `changing`. One transaction; none for no rows.

    Rows of one model come one after the other.
    """
    if not rows:
        return
    connection = connections[using]
    # By primary key: such a conflict locks the record and no gap.
    unique = ["id"] if connection.features.supports_update_conflicts_with_target else None

    def write() -> None:
        with vendor(using).transaction(connection):
            for model, of_model in groupby(rows, lambda row: type(row)):
                model._base_manager.using(using).bulk_create(
                    list(of_model), update_conflicts=True, update_fields=list(changing), unique_fields=unique
                )

    retry_transient("housekeeping", write, using=using)
