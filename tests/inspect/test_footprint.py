"""lock_footprint() tells what the server holds for this transaction, and nothing else."""

import json

import pytest
from django.db import connection, connections, transaction

from jobqueue.db import vendor
from jobqueue.db.mariadb.diagnostics import own_part
from jobqueue.exceptions import InvalidValue, NotSupported, TransactionRequired
from jobqueue.inspect import LockKind, assert_locks_at_most, lock_footprint
from tests.app.models import Account
from tests.inspect.helpers import INNODB, drop_seats, make_seats, run, undone
from tests.marks import committed
from tests.races.actors import all_at_once, holding
from tests.settings import VENDOR

pytestmark = committed
rows_are_locked = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")
innodb = pytest.mark.skipif(not INNODB, reason="only InnoDB locks gaps and entries of indexes")
SHARE = "LOCK IN SHARE MODE" if INNODB else "FOR SHARE"


@pytest.fixture
def seats(transactional_db):
    make_seats()
    yield
    drop_seats()


def keys(locks):
    return [lock.key for lock in locks]


@pytest.mark.skipif(VENDOR != "sqlite", reason="SQLite refuses")
def test_sqlite_says_that_it_has_no_row_locks_before_the_block_runs():
    with transaction.atomic(), pytest.raises(NotSupported, match="whole database"):
        with lock_footprint():
            raise AssertionError("not reached")


def test_outside_a_transaction_it_is_refused():
    with pytest.raises(TransactionRequired, match=r"outside transaction\.atomic"):
        with lock_footprint():
            raise AssertionError("not reached")


@rows_are_locked
def test_a_row_that_is_locked_by_key_is_one_row(seats):
    with undone() as cursor, lock_footprint() as footprint:
        run(cursor, "SELECT * FROM seat WHERE id = 20 FOR UPDATE")
    assert [(lock.table, lock.key, lock.is_row) for lock in footprint.rows] == [("seat", "20", True)]
    assert footprint.records == footprint.rows
    assert footprint.gaps == ()
    assert [lock.table for lock in footprint.tables] == ["seat"]
    assert footprint.complete
    assert footprint.isolation == "read committed"


@rows_are_locked
def test_what_was_locked_before_the_block_is_left_out(seats):
    with undone() as cursor:
        run(cursor, "SELECT * FROM seat WHERE id = 10 FOR UPDATE")
        with lock_footprint() as footprint:
            run(cursor, "SELECT * FROM seat WHERE id < 25 FOR UPDATE")
    assert keys(footprint.rows) == ["20"]


@rows_are_locked
def test_the_locks_of_other_sessions_are_left_out(seats):
    def lock_one():
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM seat WHERE id = 50 FOR UPDATE")

    with holding(lock_one), undone() as cursor, lock_footprint() as footprint:
        run(cursor, "SELECT * FROM seat WHERE id = 10 FOR UPDATE")
    assert keys(footprint.rows) == ["10"]


@rows_are_locked
def test_a_row_that_others_locked_and_gave_back_is_left_out(seats):
    with undone() as cursor:
        run(cursor, "SELECT * FROM seat WHERE id = 10 FOR UPDATE")
        with lock_footprint() as footprint:
            with connections["default"].copy().cursor() as other:
                other.execute("UPDATE seat SET guest = 'x' WHERE id = 40")
                other.db.close()
            run(cursor, "SELECT * FROM seat WHERE id = 30 FOR UPDATE")
    assert keys(footprint.rows) == ["30"]


@rows_are_locked
def test_a_written_row_and_a_share_lock_are_rows_too(seats):
    with undone() as cursor, lock_footprint() as footprint:
        run(cursor, "UPDATE seat SET guest = 'ann' WHERE id = 10", f"SELECT * FROM seat WHERE id = 30 {SHARE}")
    assert keys(footprint.rows) == ["10", "30"]


@rows_are_locked
def test_locks_of_savepoints_count_while_they_are_held(seats):
    with undone() as cursor, lock_footprint() as footprint:
        with transaction.atomic():
            run(cursor, "SELECT * FROM seat WHERE id = 10 FOR UPDATE")
        with transaction.atomic():
            run(cursor, "SELECT * FROM seat WHERE id = 30 FOR UPDATE")
            transaction.set_rollback(True)
    # InnoDB keeps the row locks of a savepoint that was rolled back; PostgreSQL gives them back.
    assert keys(footprint.rows) == (["10", "30"] if INNODB else ["10"])


@rows_are_locked
def test_a_missing_index_locks_the_whole_table_on_innodb_only(seats):
    make_seats(index=False)
    with undone("REPEATABLE READ") as cursor, lock_footprint() as footprint:
        run(cursor, "SELECT * FROM seat WHERE room = 2 FOR UPDATE")
    assert keys(footprint.rows) == (["10", "20", "30", "40", "50"] if INNODB else ["30", "40"])
    assert len(footprint.gaps) == (6 if INNODB else 0)


@innodb
def test_gaps_are_locked_at_repeatable_read_and_not_at_read_committed(seats):
    found = {}
    for isolation in ("READ COMMITTED", "REPEATABLE READ"):
        with undone(isolation) as cursor, lock_footprint() as found[isolation]:
            run(cursor, "SELECT * FROM seat FORCE INDEX (ix_room) WHERE room = 2 FOR UPDATE")
        assert found[isolation].isolation == isolation.lower()
    assert found["READ COMMITTED"].gaps == ()
    entries = [(lock.index, lock.kind, lock.key) for lock in found["REPEATABLE READ"].gaps]
    assert entries == [
        ("ix_room", LockKind.NEXT_KEY, "2, 30"),
        ("ix_room", LockKind.NEXT_KEY, "2, 40"),
        ("ix_room", LockKind.GAP, "3, 50"),
    ]
    assert keys(found["REPEATABLE READ"].rows) == ["30", "40"]


@innodb
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_nowait_and_skip_locked_lock_what_for_update_locks(seats, isolation):
    found = []
    for suffix in ("", " NOWAIT", " SKIP LOCKED"):
        with undone(isolation) as cursor, lock_footprint() as footprint:
            run(cursor, f"SELECT * FROM seat FORCE INDEX (ix_room) WHERE room = 2 FOR UPDATE{suffix}")
        found.append(footprint.locks)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 4


@innodb
def test_skip_locked_locks_every_row_that_a_sort_has_read(seats):
    with undone() as cursor, lock_footprint() as footprint:
        run(cursor, "SELECT * FROM seat ORDER BY label LIMIT 1 FOR UPDATE SKIP LOCKED")
    assert len(footprint.rows) == 5


@innodb
def test_a_key_that_is_not_there_locks_the_gap_where_it_would_be(seats):
    with undone("REPEATABLE READ") as cursor, lock_footprint() as footprint:
        run(cursor, "SELECT * FROM seat WHERE id = 99 FOR UPDATE", "SELECT * FROM seat WHERE id = 15 FOR UPDATE")
    assert [(lock.kind, lock.key) for lock in footprint.gaps] == [(LockKind.GAP, "20"), (LockKind.SUPREMUM, None)]
    assert footprint.rows == ()


@innodb
def test_text_keys_and_negative_numbers_are_readable(seats):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO seat (id, room, label) VALUES (-7, 9, 'it''s, so')")
        cursor.execute("CREATE INDEX ix_label ON seat (label)")
    with undone() as cursor, lock_footprint() as footprint:
        run(cursor, "SELECT * FROM seat FORCE INDEX (ix_label) WHERE label = 'it''s, so' FOR UPDATE")
    assert keys(footprint.rows) == ["-7"]
    (entry,) = [lock for lock in footprint.records if not lock.is_row]
    assert "it" in entry.key
    assert entry.key.endswith(", -7")


@rows_are_locked
def test_text_and_json_tell_the_same(seats):
    with undone("REPEATABLE READ") as cursor, lock_footprint() as footprint:
        run(cursor, "SELECT * FROM seat WHERE id >= 40 FOR UPDATE")
    text, values = str(footprint), json.loads(json.dumps(footprint.as_json()))
    assert "2 rows" in text
    assert "(40)" in text
    assert "(50)" in text
    assert (values["rows"], values["version"]) == (2, 1)
    assert {lock["key"] for lock in values["locks"] if lock["is_row"]} == {"40", "50"}


@rows_are_locked
def test_inside_its_block_and_after_an_error_a_footprint_cannot_be_read(seats):
    with undone(), lock_footprint() as footprint:
        with pytest.raises(InvalidValue, match="after the block"):
            print(footprint.rows)
    assert footprint.rows == ()
    with undone(), pytest.raises(ZeroDivisionError):
        with lock_footprint() as footprint:
            print(1 / 0)
    with pytest.raises(InvalidValue):
        print(footprint)


@rows_are_locked
def test_it_works_in_a_transaction_that_has_made_its_rows_itself(seats):
    with transaction.atomic():
        account = Account.objects.create(owner="ann")
        with assert_locks_at_most(rows=1, gaps=0) as footprint:
            Account.objects.select_for_update().get(pk=account.pk)
    # To the others it was locked before: for MySQL alone this is a lock of its own.
    assert keys(footprint.rows) == ([str(account.pk)] if VENDOR == "mysql" else [])


@rows_are_locked
def test_assert_locks_at_most_passes_up_to_its_numbers_and_shows_the_locks_beyond(seats):
    with undone() as cursor:
        with assert_locks_at_most(rows=2, gaps=0, records=4):
            run(cursor, "SELECT * FROM seat WHERE id <= 20 FOR UPDATE")
        with pytest.raises(AssertionError, match="2 rows instead of at most 1") as caught:
            with assert_locks_at_most(rows=1):
                run(cursor, "SELECT * FROM seat WHERE id >= 40 FOR UPDATE")
        assert "(50)" in str(caught.value)


def test_assert_locks_at_most_needs_a_number():
    with pytest.raises(InvalidValue, match="needs rows"):
        with assert_locks_at_most():
            raise AssertionError("not reached")


@pytest.fixture
def poor(seats):
    """The connection of an account that may read its tables and nothing of the server."""
    other = connections["default"].copy()
    with connection.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS 'poor'@'%'")
        cursor.execute("CREATE USER 'poor'@'%' IDENTIFIED BY 'poor'")
        cursor.execute(f"GRANT SELECT, UPDATE ON `{connection.settings_dict['NAME']}`.* TO 'poor'@'%'")
    other.settings_dict = {**other.settings_dict, "USER": "poor", "PASSWORD": "poor"}
    yield other
    other.close()
    with connection.cursor() as cursor:
        cursor.execute("DROP USER 'poor'@'%'")


@innodb
def test_an_account_without_the_right_is_told_which_one_it_needs(poor):
    with pytest.raises(NotSupported, match="GRANT SELECT ON performance_schema" if VENDOR == "mysql" else "PROCESS"):
        vendor("default").diagnostics.held(poor)


@pytest.mark.skipif(VENDOR != "mariadb", reason="a switch of MariaDB")
@pytest.mark.parametrize("switch", ["ON", "OFF"])
def test_mariadbs_switch_is_left_as_it_was(seats, switch):
    with connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL innodb_status_output_locks = {switch}")
        with undone() as inner, lock_footprint() as footprint:
            run(inner, "SELECT * FROM seat WHERE id = 20 FOR UPDATE")
        cursor.execute("SELECT @@GLOBAL.innodb_status_output_locks")
        assert cursor.fetchone() == (switch == "ON",)
        cursor.execute("SET GLOBAL innodb_status_output_locks = OFF")
    assert keys(footprint.rows) == ["20"]


@rows_are_locked
def test_many_may_look_at_once_and_each_sees_its_own(seats):
    def look(key):
        found = set()
        for _ in range(10):
            with undone() as cursor, lock_footprint() as footprint:
                run(cursor, f"SELECT * FROM seat WHERE id = {key} FOR UPDATE")
            assert footprint.complete
            found |= set(keys(footprint.rows))
        return found

    assert all_at_once([lambda key=key: look(key) for key in (10, 20, 30)]) == [{"10"}, {"20"}, {"30"}]


@pytest.mark.skipif(VENDOR != "postgres", reason="PostgreSQL keeps locks in rows, and asks whose they are")
def test_a_lock_that_ends_while_its_holder_is_looked_up_is_left_out(seats):
    session = connections["default"].copy()
    looked = []

    def end_the_other(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if "transactionid" in sql or "pg_xact_status" in sql:
            looked.append(sql)
            session.rollback()
        return found

    with session.cursor() as other:
        session.set_autocommit(False)
        with undone() as cursor, connection.execute_wrapper(end_the_other), lock_footprint() as footprint:
            run(cursor, "SELECT * FROM seat WHERE id = 10 FOR UPDATE")
            # later, because only transactions that began after this one are looked up
            other.execute("SELECT * FROM seat WHERE id = 40 FOR UPDATE")
    session.close()
    assert looked
    assert keys(footprint.rows) == ["10"]


@pytest.mark.skipif(VENDOR != "mariadb", reason="the others do not tell it in a text")
def test_a_session_whose_number_begins_like_ours_is_another_one():
    text = "".join(
        f"---TRANSACTION {number}, ACTIVE 1 sec\nMariaDB thread id {number}, OS thread handle 5\nTABLE LOCK {number}\n"
        for number in (123, 12)
    )
    lines, was_cut = own_part(text, 12)
    assert (lines[-1], was_cut) == ("TABLE LOCK 12", False)


@pytest.mark.skipif(VENDOR != "mariadb", reason="the monitor of MariaDB shows ten lists of locks")
def test_a_list_that_the_server_cut_short_says_so(seats):
    with connection.cursor() as cursor:
        for number in range(12):
            cursor.execute(f"CREATE TABLE seat{number} (id int PRIMARY KEY)")
    try:
        with undone() as cursor, lock_footprint() as footprint:
            run(cursor, *(f"SELECT * FROM seat{number} WHERE id = 1 FOR UPDATE" for number in range(12)))
        assert not footprint.complete
        assert "cut its list short" in str(footprint)
        with undone() as cursor, pytest.raises(AssertionError, match="did not list all"):
            with assert_locks_at_most(rows=100):
                run(cursor, *(f"SELECT * FROM seat{number} WHERE id = 1 FOR UPDATE" for number in range(12)))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE " + ", ".join(f"seat{number}" for number in range(12)))


@pytest.mark.skipif(VENDOR != "postgres", reason="an extension of PostgreSQL")
def test_pgrowlocks_adds_the_kind_of_lock_and_shared_rows(seats):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'pgrowlocks'")
        if cursor.fetchone() is None:
            pytest.skip("this server has no pgrowlocks")
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pgrowlocks")

    def share():
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM seat WHERE id = 20 FOR SHARE")

    try:
        with holding(share), undone() as cursor, lock_footprint() as footprint:
            run(cursor, "SELECT * FROM seat WHERE id = 10 FOR UPDATE", "SELECT * FROM seat WHERE id = 20 FOR SHARE")
        assert [(lock.key, lock.mode) for lock in footprint.rows] == [("10", "For Update"), ("20", "Share")]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP EXTENSION pgrowlocks")
