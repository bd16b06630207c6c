"""A value per row in one UPDATE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Expression

from jobqueue.db.fields import Encoded, PayloadField


class ByKey(Expression):
    """CASE id WHEN 1 THEN ... END: the payload of each row by its primary key, NULL for all others.

    Django's Case does the same at several times the cost: it resolves a query per branch.
    """

    def __init__(self, payloads: Mapping[int, Encoded]) -> None:
        super().__init__(output_field=PayloadField())
        self._payloads = payloads

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """One WHEN per row; keys and payloads are parameters."""
        field: Any = self.output_field
        params: list[Any] = []
        for key, payload in self._payloads.items():
            params += [key, field.get_db_prep_value(payload, connection)]
        key_column = connection.ops.quote_name("id")
        return f"CASE {key_column} {'WHEN %s THEN %s ' * len(self._payloads)}END", params
