"""A value per row in one UPDATE."""

from __future__ import annotations

from typing import Any

from jobqueue.db.fields import PayloadField
from jobqueue.db.prepared import Slot


class ByKey(Slot):
    """CASE id WHEN 1 THEN ... END: the payload of each row by its primary key, NULL for all others.

    A run brings a dict. Django's Case does the same at several times the cost: it resolves a query per branch.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, PayloadField())

    def render(self, value: Any, connection: Any) -> tuple[str, list[Any]]:
        """One WHEN per row; payloads are parameters."""
        if not value:
            return "NULL", []
        field: Any = self.output_field
        branches = " ".join(f"WHEN {int(key)} THEN %s" for key in value)
        payloads = [field.get_db_prep_value(payload, connection) for payload in value.values()]
        return f"CASE {connection.ops.quote_name('id')} {branches} END", payloads
