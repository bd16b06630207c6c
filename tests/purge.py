"""Deleted rows that InnoDB has not taken out of its indexes yet."""

from __future__ import annotations

from django.db import connection

from tests.patience import wait_until
from tests.settings import VENDOR


def wait_for_purge():
    """Return when no deleted row is left: at REPEATABLE READ a scan locks their index entries, too."""
    if VENDOR == "mysql":
        with connection.cursor() as cursor:
            # Or the length of the history is only counted anew after 128 rounds.
            cursor.execute("SET GLOBAL innodb_purge_rseg_truncate_frequency = 1")
        wait_until(lambda: _history() == 0, what="the purge of what earlier tests have deleted")


def _history():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
        return cursor.fetchone()[0]
