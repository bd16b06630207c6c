"""Empty the tables of PostgreSQL between tests, and only those that have rows."""


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
