"""What docs/explanation/lock-ranges.md shows is what MySQL says. JOBQUEUE_WRITE_DOCS=1 writes it anew."""

import os
import re
import threading

import pytest
from django.db import connection, connections, transaction

from jobqueue.inspect import lock_footprint
from tests.docs.markdown import ROOT
from tests.inspect.helpers import drop_seats, make_seats, run, undone
from tests.marks import committed
from tests.patience import patient
from tests.races.actors import Actor
from tests.settings import VENDOR

PAGE = ROOT / "docs" / "explanation" / "lock-ranges.md"
WRITE = os.environ.get("JOBQUEUE_WRITE_DOCS") == "1"
pytestmark = [committed, pytest.mark.skipif(VENDOR != "mysql", reason="the page shows MySQL's words")]
ROOM = "SELECT * FROM seat WHERE room = 2 FOR UPDATE"
COMMITTED, REPEATABLE = "READ COMMITTED", "REPEATABLE READ"


def locked(isolation, statement, index=True):
    make_seats(index=index)
    with undone(isolation) as cursor, lock_footprint() as footprint:
        run(cursor, statement)
    return footprint


def inserted_after_a_wait():
    """An insert into a gap that another transaction held when it began."""
    make_seats()
    close, closed = threading.Event(), threading.Event()

    def hold_the_gap():
        with undone(REPEATABLE) as cursor:
            run(cursor, "SELECT * FROM seat WHERE id = 15 FOR UPDATE")
            closed.set()
            assert close.wait(patient())

    def insert():
        with undone(REPEATABLE) as cursor, lock_footprint() as footprint:
            run(cursor, "INSERT INTO seat (id, room, label) VALUES (15, 1, 'F')")
        return footprint

    holder = Actor(hold_the_gap)
    assert closed.wait(patient())
    inserter = Actor(insert)
    assert inserter.is_blocked()
    close.set()
    holder.result()
    return inserter.result()


@pytest.fixture
def footprints(transactional_db):
    try:
        yield [
            locked(REPEATABLE, "SELECT * FROM seat WHERE id = 20 FOR UPDATE"),
            locked(COMMITTED, ROOM),
            locked(REPEATABLE, ROOM),
            locked(REPEATABLE, ROOM, index=False),
            locked(COMMITTED, ROOM, index=False),
            locked(REPEATABLE, "SELECT * FROM seat WHERE id = 15 FOR UPDATE"),
            locked(REPEATABLE, "SELECT * FROM seat WHERE id = 99 FOR UPDATE"),
            inserted_after_a_wait(),
        ]
    finally:
        drop_seats()


def test_the_page_shows_what_the_server_says(footprints):
    said = [f"{footprint}\n" for footprint in footprints]
    block = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    if WRITE:
        texts = iter(said)
        PAGE.write_text(block.sub(lambda _: f"```text\n{next(texts)}```", PAGE.read_text()))
    assert block.findall(PAGE.read_text()) == said


def test_two_that_check_and_then_insert_deadlock():
    make_seats()
    both = threading.Barrier(2)

    def book(number):
        with transaction.atomic(), connection.cursor() as cursor:
            run(cursor, "SELECT * FROM seat WHERE id = 15 FOR UPDATE")
            both.wait(patient())
            run(cursor, f"INSERT INTO seat (id, room, label) VALUES ({number}, 1, 'F')")

    def session(number):
        with connections["default"].cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {REPEATABLE}")
        book(number)

    try:
        outcomes = [actor.outcome() for actor in [Actor(session, 15), Actor(session, 16)]]
    finally:
        drop_seats()
    assert sorted(getattr(outcome, "args", (0,))[0] for outcome in outcomes) == [0, 1213]
