"""MySQL and MariaDB: clocks, kinds of errors, hints, lock waits, mutex rows, sessions, what the server tells."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

MYSQL = [
    mutant(
        "MySQL's clock is in the zone of the session",
        "db/mysql/dialect.py",
        "MySQL.now_sql",
        'now_sql = "UTC_TIMESTAMP(6)"',
        'now_sql = "NOW(6)"',
        "tests/db/test_clock.py",
        database="mysql",
    ),
    mutant(
        "MySQL counts the end of a lease in the zone of the session",
        "db/mysql/dialect.py",
        "MySQL.now_plus_sql",
        '* 1000000), UTC_TIMESTAMP(6))"',
        '* 1000000), NOW(6))"',
        "tests/db/test_clock.py",
        "tests/transitions/test_settle.py",
        database="mysql",
    ),
    mutant(
        "mutex() grants an older snapshot on MySQL",
        "db/mysql/mutex.py",
        "MutexOfMySQL._refuse_stale",
        "if takes or not unseen or self._swept(cursor):",
        "if self.key is None:",
        "tests/locks/test_mutex_snapshots.py",
        database="mysql",
    ),
]

MUTANTS = [*MYSQL]
