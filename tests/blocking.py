"""What the server says of sessions that wait for each other."""

import time

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
        let_lists_expire()
        with other.cursor() as cursor:
            cursor.execute(BLOCKED[VENDOR])
            return cursor.fetchone()[0]
    finally:
        other.close()


def let_lists_expire():
    """Pause before a look at InnoDB's transactions and lock waits.

    The server makes these lists anew only if nobody has read them for 100 ms: a test that looks more often sees the
    same list for ever.
    """
    if VENDOR in ("mysql", "mariadb"):
        time.sleep(0.15)
