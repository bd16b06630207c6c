"""Every moment at which work with the database can be cut: before and after each statement, BEGIN and COMMIT."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from unittest.mock import patch

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper


@contextmanager
def _rules_known():
    """Pauses and limits are known, and are not read again because time has passed: else moments would move."""
    try:
        from jobqueue.gates import rules
    except ImportError:
        # The code of before there were any.
        yield
        return
    with patch.object(rules, "RULES_SECONDS", 3600.0), patch.object(rules, "SHUT_SECONDS", 3600.0):
        rules.forget_rules()
        rules.rules("default")
        yield
    rules.forget_rules()


@contextmanager
def cut_at(number, cut, *, threads=False):
    """Call cut(connection, after) at moment `number` (from 1) of the block; gives a list of the moments passed.

    Moments are those of this thread; with `threads` of all threads of the process.
    """
    passed = []
    mine = threading.get_ident()
    cutting = False

    def moment(connection, what, after):
        nonlocal cutting
        if cutting or (not threads and threading.get_ident() != mine):
            return
        passed.append(f"{'after' if after else 'before'} {what}")
        if len(passed) == number:
            cutting = True
            try:
                cut(connection, after)
            finally:
                cutting = False

    def watched(real, connection_of, name):
        def call(self, *arguments, **named):
            what = name or str(arguments[0])[:60]
            if name == "autocommit":
                what = "END" if arguments[0] else "BEGIN"
            moment(connection_of(self), what, False)
            answer = real(self, *arguments, **named)
            moment(connection_of(self), what, True)
            return answer

        return call

    def of_cursor(cursor):
        return cursor.db

    def itself(connection):
        return connection

    with (
        _rules_known(),
        patch.object(CursorWrapper, "_execute", watched(CursorWrapper._execute, of_cursor, "")),
        patch.object(CursorWrapper, "_executemany", watched(CursorWrapper._executemany, of_cursor, "")),
        patch.object(
            BaseDatabaseWrapper, "set_autocommit", watched(BaseDatabaseWrapper.set_autocommit, itself, "autocommit")
        ),
        patch.object(BaseDatabaseWrapper, "_commit", watched(BaseDatabaseWrapper._commit, itself, "COMMIT")),
    ):
        yield passed
