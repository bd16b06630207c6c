"""INSERT of many rows that writes over those whose keys exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from django.db import connections
from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)


def upsert(rows: QuerySet[M], new: Iterable[M], *, keys: Sequence[str], changed: Sequence[str]) -> None:
    """Insert `new`; of rows that exist with the same `keys`, a unique index, write the columns `changed`."""
    # MySQL names no index: any unique one counts, and these tables have one.
    named = connections[rows.db].features.supports_update_conflicts_with_target
    unique = [*keys] if named else None
    rows.bulk_create(new, update_conflicts=True, unique_fields=unique, update_fields=[*changed])
