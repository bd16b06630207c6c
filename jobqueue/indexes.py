"""Whether the job table has the indexes that claims stand on."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections

from jobqueue.models import Job


def missing_indexes(alias: str) -> Iterator[tuple[str, str, str]]:
    """(check id, what is wrong, what to do) for each that somebody has dropped; nothing where there is no table yet."""
    connection, table = connections[alias], Job._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return
        present = connection.introspection.get_constraints(cursor, table)
    wanted = {index.name for index in Job._meta.indexes} | {"uq_queue_dedupe"}
    for name in sorted(wanted - set(present)):
        yield (
            "E012",
            f"The index {name} is missing on {table}: claims would read, and lock, far more than they take.",
            "Somebody dropped it; create it again as docs/reference/sql.md shows.",
        )
