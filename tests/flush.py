"""Empty the tables between tests, only those that have rows; and drop PostgreSQL's test database at the end."""

#: filled by migrate, and read by the tests of permissions
KEPT = frozenset({"django_content_type", "auth_permission"})


def flush_only_what_has_rows():
    """Replace the teardown of Django: it empties all tables and fills two again, which takes longer than most tests."""
    from django.db import connections
    from django.test import TransactionTestCase

    def teardown(self):
        for alias in self._databases_names(include_mirrors=False):
            empty_tables(connections[alias])

    TransactionTestCase._fixture_teardown = teardown


def empty_tables(connection):
    """Delete all rows but those that are kept."""
    from django.core.management.color import no_style

    if touched := tables_with_rows(connection):
        # CASCADE reaches nothing that has rows: a table that refers to one of these and has any is one of them.
        statements = connection.ops.sql_flush(no_style(), touched, allow_cascade=True)
        connection.ops.execute_sql_flush(statements)


def tables_with_rows(connection):
    """The names of Django's tables in this database that have rows, without those that are kept."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # A table that was emptied by TRUNCATE has no page.
            names = connection.introspection.django_table_names(include_views=False)
            cursor.execute(
                "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND relkind = 'r' AND pg_table_is_visible(oid)"
                " AND pg_relation_size(oid) > 0",
                [sorted({*names} - KEPT)],
            )
            return [name for (name,) in cursor.fetchall()]
        names = connection.introspection.django_table_names(only_existing=True, include_views=False)
        found = sorted({*names} - KEPT)
        if not found:
            return []
        quoted = map(connection.ops.quote_name, found)
        cursor.execute("SELECT " + ", ".join(f"EXISTS(SELECT 1 FROM {name})" for name in quoted))
        return [name for name, filled in zip(found, cursor.fetchone(), strict=True) if filled]


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
