"""Inserts and long lists of ids, on MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from django.db.models import Q, QuerySet

from jobqueue.db.mysql.statements import MySQLStatements, force_index
from jobqueue.db.statements import Statements

#: a longer list of values becomes a temporary table and a sort (in_predicate_conversion_threshold, 1000 by default)
LISTED_MAX = 999
Rows = TypeVar("Rows", bound=QuerySet[Any])


class MariaDBStatements(MySQLStatements):
    """Where MariaDB differs from MySQL."""

    # INSERT ... RETURNING
    insert = Statements.insert
    insert_one = Statements.insert_one

    def of_ids(self, queryset: Rows, ids: Sequence[int]) -> Rows:
        """As that of MySQL, in lists of LISTED_MAX ids."""
        wanted = Q()
        for begin in range(0, len(ids), LISTED_MAX):
            wanted |= Q(pk__in=ids[begin : begin + LISTED_MAX])
        return force_index(queryset.filter(wanted), "PRIMARY")
