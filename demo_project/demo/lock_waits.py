"""How often statements have waited for a row lock, by the server's own count."""

from django.db import connection


def lock_waits() -> int | None:
    """The waits since the server started, of all its sessions, from InnoDB; None on other databases."""
    if connection.vendor != "mysql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")
        row = cursor.fetchone()
    return int(row[1]) if row else None


def waits_since(before: int | None) -> int | None:
    """The waits since `before`, which lock_waits() returned."""
    after = lock_waits()
    return None if before is None or after is None else after - before
