"""A table of seats, and a place to look at locks in."""

from contextlib import contextmanager

from django.db import connection, transaction

from tests.settings import VENDOR

INNODB = VENDOR in ("mysql", "mariadb")
SEATS = [(10, 1, "A"), (20, 1, "B"), (30, 2, "C"), (40, 2, "D"), (50, 3, "E")]


def make_seats(*, index=True):
    """A new table `seat` (id, room, label, guest): five rows; with ix_room on (room), or without."""
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS seat")
        cursor.execute(
            "CREATE TABLE seat (id int PRIMARY KEY, room int NOT NULL, label varchar(20) NOT NULL, "
            "guest varchar(20) NOT NULL DEFAULT '')"
        )
        if index:
            cursor.execute("CREATE INDEX ix_room ON seat (room)")
        cursor.executemany("INSERT INTO seat (id, room, label) VALUES (%s, %s, %s)", SEATS)


def drop_seats():
    """Away with it."""
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS seat")


@contextmanager
def undone(isolation="READ COMMITTED"):
    """A transaction of that isolation level which is rolled back."""
    with connection.cursor() as cursor:
        if INNODB:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        with transaction.atomic():
            if VENDOR == "postgres":
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            yield cursor
            transaction.set_rollback(True)


def run(cursor, *statements):
    """Run them all, and read what they give."""
    for statement in statements:
        cursor.execute(statement)
        if cursor.description:
            cursor.fetchall()
