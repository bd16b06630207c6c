"""What the server says of sessions that wait for each other."""

from django.db import connections

from tests.settings import VENDOR

BLOCKED = {
    "mysql": "SELECT COUNT(*) FROM performance_schema.data_lock_waits",
    "mariadb": "SELECT COUNT(*) FROM information_schema.innodb_lock_waits",
    "postgres": "SELECT COUNT(*) FROM pg_locks WHERE NOT granted",
}


def somebody_waits():
    """Whether any session of the server waits for a row lock."""
    return waiters() > 0


def waiters():
    """How many waits for a row lock the server lists."""
    other = connections["default"].copy()
    try:
        with other.cursor() as cursor:
            if VENDOR == "mariadb":
                # Its view of lock waits is only made anew when nobody has looked for 100 ms.
                cursor.execute("SELECT SLEEP(0.15)")
            cursor.execute(BLOCKED[VENDOR])
            return cursor.fetchone()[0]
    finally:
        other.close()
