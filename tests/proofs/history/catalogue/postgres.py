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
