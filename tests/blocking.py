"""Whether sessions wait for each other, as the server says."""

import time

from django.db import connections

from tests.patience import wait_until
from tests.settings import VENDOR

#: how long those are watched of whom nobody tells whether they wait
MOMENT_SECONDS = 0.25
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


def is_held_up(is_over):
    """Whether somebody waits for a lock instead of coming to the end, which is_over() tells.

    SQLite lists nobody: there, whether the end does not come in a short while.
    """
    if VENDOR == "sqlite":
        return stays_away(is_over)
    wait_until(lambda: is_over() or somebody_waits(), what="a wait for a lock, or the end")
    return not is_over()


def stays_away(is_over):
    """Whether the end does not come in a short while: for waits that no server knows of."""
    time.sleep(MOMENT_SECONDS)
    return not is_over()


def let_lists_expire():
    """Pause before a look at InnoDB's transactions and lock waits.

    The server makes these lists anew only if nobody has read them for 100 ms: a test that looks more often sees the
    same list for ever.
    """
    if VENDOR in ("mysql", "mariadb"):
        time.sleep(0.15)
