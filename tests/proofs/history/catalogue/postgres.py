"""PostgreSQL: clock, kinds of errors, walks by id, lock waits, sessions, what the server tells; and retries on it."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

POSTGRESQL = [
    mutant(
        "PostgreSQL's clock stands still within a transaction",
        "db/postgresql/dialect.py",
        "PostgreSQL.now_sql",
        'now_sql = "STATEMENT_TIMESTAMP()"',
        'now_sql = "TRANSACTION_TIMESTAMP()"',
        "tests/db/test_clock.py",
        database="postgres",
    ),
    mutant(
        "PostgreSQL: a lost answer counts as a statement that was never sent",
        "db/postgresql/dialect.py",
        "PostgreSQL.never_sent",
        "str(error).startswith(_NEVER_SENT)",
        "'failed: ' in str(error)",
        "tests/faults/test_lost_answers.py",
        database="postgres",
    ),
    mutant(
        "a lock that is not available is no transient error: 55P03",
        "db/postgresql/dialect.py",
        "_TRANSIENT",
        '"55P03": ErrorKind.LOCK_TIMEOUT,',
        "",
        "tests/db/test_error_kinds.py",
        database="postgres",
    ),
    mutant(
        "a session that the server has terminated counts as one that works: 57P01",
        "db/postgresql/dialect.py",
        "_GONE",
        '{"57P01", "57P02"',
        '{"57P02"',
        "tests/db/test_error_kinds.py",
        "tests/faults/test_killed_connections.py",
        database="postgres",
    ),
    mutant(
        "the last id of a range is left out",
        "db/postgresql/dialect.py",
        "PostgreSQL.within_ids",
        "{{key}} <= {up_to:d}",
        "{{key}} < {up_to:d}",
        "tests/db/test_ids.py",
        database="postgres",
    ),
    mutant(
        "the newest job of an ordering key has its turn first",
        "db/postgresql/dialect.py",
        "PostgreSQL.next_in_groups_sql",
        "f.id LIMIT 1) AS p",
        "f.id DESC LIMIT 1) AS p",
        "tests/ordering/test_ordering_key.py",
        database="postgres",
    ),
    mutant(
        "the oldest event of a key is not the one that is found",
        "db/postgresql/dialect.py",
        "PostgreSQL.first_ids_after_sql",
        'f"ORDER BY {column}, id LIMIT 1"',
        'f"ORDER BY {column}, id DESC LIMIT 1"',
        "tests/outbox/test_relay.py",
        database="postgres",
    ),
    mutant(
        "a failed transaction that a task has left open is not seen",
        "db/postgresql/dialect.py",
        "PostgreSQL.in_transaction",
        "session.info.transaction_status != 0",
        "session.info.transaction_status == 2",
        "tests/worker/test_leftovers.py",
        database="postgres",
    ),
    mutant(
        "advisory locks of a job stay with the session of the next",
        "db/postgresql/dialect.py",
        "PostgreSQL.reset_session",
        "DISCARD ALL",
        "RESET ALL",
        "tests/worker/test_leftovers.py",
        database="postgres",
    ),
    mutant(
        "a server without a free connection is not waited for: 53300",
        "db/postgresql/session.py",
        "has_no_connection",
        'sqlstate(error) == "53300" or type',
        "type",
        "tests/db/test_error_kinds.py",
        database="postgres",
    ),
    mutant(
        "a stricter limit that the session has is lifted",
        "db/postgresql/session.py",
        "limited",
        "min(before, limit) if before else limit",
        "limit",
        "tests/db/test_time_limit.py",
        database="postgres",
    ),
    mutant(
        "a mutex is granted to a snapshot from before its row was swept",
        "db/postgresql/locks.py",
        "PostgreSQLLocks.take_mutex",
        """if found:
                    self._refuse_swept(connection, rows)""",
        "",
        "tests/locks/test_mutex_snapshots.py",
        database="postgres",
    ),
    mutant(
        "the lock_timeout of a mutex stays in the caller's transaction",
        "db/postgresql/locks.py",
        "PostgreSQLLocks._lock_wait",
        """return
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])""",
        "return",
        "tests/locks/test_limited_waits.py",
        "tests/locks/test_mutex.py",
        database="postgres",
    ),
    mutant(
        "the database's own limit of sessions is not looked at",
        "db/postgresql/set_up.py",
        "_USE",
        "NULLIF(datconnlimit, -1)",
        "NULLIF(datconnlimit, datconnlimit)",
        "tests/doctor/test_server.py",
        database="postgres",
    ),
    mutant(
        "an index whose building has failed counts as one that claims can use",
        "db/postgresql/set_up.py",
        "_INDEXES",
        "WHERE x.indisvalid AND pg_table_is_visible",
        "WHERE pg_table_is_visible",
        "tests/doctor/test_schema.py",
        database="postgres",
    ),
]

RETRY = [
    mutant(
        "a transient fault is retried inside the caller's transaction",
        "db/retry.py",
        "retry_transient",
        """if in_callers_transaction(connections[using]):
            return work()""",
        "",
        "tests/db/test_autocommit.py",
        database="mysql",
    ),
]

MUTANTS = [*POSTGRESQL, *RETRY]
