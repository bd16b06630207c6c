"""Empty the tables of PostgreSQL between tests, only those that have rows; and drop its test database at the end."""


def flush_only_what_has_rows():
    """TRUNCATE makes and syncs a new file for every table it names: 150 ms for all of ours, some thousand times."""
    from django.db.backends.postgresql.operations import DatabaseOperations

    flush = DatabaseOperations.sql_flush

    def flush_some(self, style, tables, **options):
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND relkind = 'r' AND pg_table_is_visible(oid)"
                " AND pg_relation_size(oid) > 0",
                [list(tables)],
            )
            touched = [name for (name,) in cursor.fetchall()]
        # CASCADE reaches nothing that has rows: a table that refers to one of these and has any is one of them.
        return flush(self, style, touched, **options | {"allow_cascade": True})

    DatabaseOperations.sql_flush = flush_some


def drop_when_nobody_is_there():
    """A busy server needs longer than the five seconds of DROP DATABASE to end the sessions of killed workers."""
    from django.db.backends.postgresql.creation import DatabaseCreation

    drop = DatabaseCreation._destroy_test_db

    def wait_and_drop(self, name, verbosity):
        # Models cannot be imported before Django is set up.
        from tests.patience import wait_until

        with self._nodb_cursor() as cursor:

            def nobody():
                cursor.execute(
                    "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'",
                    [name],
                )
                return cursor.fetchone()[0] == 0

            wait_until(nobody, what=f"the end of all sessions of {name}")
        drop(self, name, verbosity)

    DatabaseCreation._destroy_test_db = wait_and_drop
