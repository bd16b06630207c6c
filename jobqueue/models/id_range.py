"""Whether ids of jobs come near the end of what programs can count to."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections

from jobqueue.db import vendor
from jobqueue.models import Job

#: the highest id that Django's lookups, other languages and PostgreSQL know; MySQL's column goes on to twice as much
ID_MAX = 2**63 - 1
_NEAR = ID_MAX // 10 * 9
_HINT = "Somebody has raised the table's counter; set it back, see docs/reference/checks.md."


def id_range(alias: str) -> Iterator[tuple[str, str, str]]:
    """(check id, what is wrong, what to do); nothing where there is no table yet."""
    connection, table = connections[alias], Job._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return
    following = vendor(alias).next_id(connection, table)
    if following > ID_MAX:
        text = f"The next id of {table} is {following}, above {ID_MAX}: such jobs could be neither renewed nor acked."
        yield "E014", text, _HINT
    elif following > _NEAR:
        text = f"The next id of {table} is {following}; jobs above {ID_MAX} could be neither renewed nor acked."
        yield "W026", text, _HINT
