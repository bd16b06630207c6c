"""A row that stands for a key: who writes it keeps others out until the transaction ends."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connections, models, transaction

from jobqueue.db import vendor
from jobqueue.db.parameters import placeholder


def hold_key(model: type[models.Model], key: bytes, using: str) -> None:
    """Make or lock the row of `key`, the primary key of `model`, until the transaction ends; waits for other holders.

    The model has a column created_at, which stays as it is.
    """
    field: Any = model._meta.pk
    with transaction.mark_for_rollback_on_error(using=using), connections[using].cursor() as cursor:
        parameter = field.get_db_prep_save(key, connections[using])
        cursor.execute(_sql(model, placeholder(parameter), using), [parameter])


@cache
def _sql(model: type[models.Model], place: str, using: str) -> str:
    field: Any = model._meta.pk
    quote = connections[using].ops.quote_name
    sql = vendor(using).hold_row_sql(quote(model._meta.db_table), quote(field.column), quote("created_at"))
    return sql.replace("%s", place)
