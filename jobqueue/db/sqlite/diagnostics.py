"""What SQLite tells about locks: nothing."""

from __future__ import annotations

from jobqueue.db.diagnostics import Diagnostics


class SQLiteDiagnostics(Diagnostics):
    """There are no row locks: a transaction that writes locks the whole database."""

    name = "SQLite"
