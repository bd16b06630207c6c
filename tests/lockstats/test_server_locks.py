"""What the server tells of its locks: real waits, real deadlocks, and clear sentences where it does not tell."""

import time
from collections import Counter

import pytest
from django.db import connection, connections

from jobqueue import signals
from jobqueue.db.diagnostics import without_values
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.mysql.diagnostics import QUOTES, read_deadlock
from jobqueue.db.retry import count_refusal
from jobqueue.exceptions import NotSupported
from jobqueue.locks import lease_lock
from jobqueue.lockstats import recorder
from jobqueue.lockstats.report import finding_lines, read_findings, read_server
from jobqueue.maintenance import lock_watch
from jobqueue.models import LockFinding, LockRow
from tests.locks.helpers import expire
from tests.locks.waiting import TABLE, deadlock, diagnostics, fresh, insert, one_waits
from tests.marks import committed
from tests.patience import wait_until
from tests.settings import VENDOR

INNODB = VENDOR in ("mysql", "mariadb")
has_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks")
pytestmark = committed


@pytest.fixture(autouse=True)
def own_turn(monkeypatch):
    """It is this process's turn to watch, until the test takes it away."""
    monkeypatch.setattr(lock_watch, "INTERVAL_SECONDS", 600)


def watch():
    """One look of the watch, whoever had the last turn."""
    fresh()
    LockRow.objects.filter(pk=lock_watch.TURN).delete()
    return lock_watch.run_once(recorder.load(), using="default")


def findings(kind=LockFinding.Kind.DEADLOCK):
    """What was kept."""
    return list(read_findings(kind, limit=1000, using="default"))


@has_locks
def test_who_waits_for_whom_is_told_with_both_statements_and_without_values():
    begun = time.monotonic()
    with one_waits() as (holder, waiter):
        (wait,) = [wait for wait in diagnostics().waits(fresh()) if TABLE in wait.locked]
        # Some servers count whole seconds.
        assert 0 < wait.seconds < time.monotonic() - begun + 1
        assert wait.blocking_seconds >= wait.seconds - 1
        assert wait.blocker_idles
        if INNODB:
            assert wait.locked == f"{TABLE}, index PRIMARY, record 1"
            assert wait.mode.startswith("X")
        else:
            assert wait.locked.startswith(f"{TABLE}, row (0,")
    spoken = wait.waiting_statement.replace("`", "")
    assert spoken == f"UPDATE {TABLE} SET note = ? WHERE id = ?"
    # MariaDB tells the statement of a session that runs one, and only that.
    assert wait.blocking_statement.replace("`", "") == ("" if VENDOR == "mariadb" else spoken)
    assert (wait.blocking, wait.waiting) == (holder.number, waiter.number)


@has_locks
def test_who_has_inserted_a_row_is_told_as_its_holder():
    # MySQL notes such a lock, once somebody waits for it, as one of the session that waits.
    with one_waits(insert, 3) as (holder, waiter):
        found = [(wait.blocking, wait.waiting) for wait in diagnostics().waits(fresh()) if wait.blocking_seconds]
    assert found == [(holder.number, waiter.number)]


@pytest.mark.skipif(VENDOR != "mysql", reason="only MySQL lists the locks of an idle transaction with their tables")
def test_rows_that_a_session_has_inserted_are_among_its_locks_once_somebody_waits():
    with one_waits(insert, 3) as (holder, waiter):
        assert diagnostics().may_lock(fresh(), holder.number, TABLE)
        assert [lock.key for lock in diagnostics().held(holder).locks if lock.table == TABLE and lock.key] == ["3"]
        rows = diagnostics().row_holders(fresh(), {TABLE: ("id", [3])}, 0.0)
    assert [(one.session, one.key) for one in rows if one.key == "3"] == [(holder.number, "3")]
    assert waiter.number != holder.number


@has_locks
def test_a_long_wait_is_kept_once_for_as_long_as_it_lasts(monkeypatch):
    monkeypatch.setattr(lock_watch, "WAIT_SECONDS", 0.0)
    with one_waits():
        assert watch()["waits"] >= 1
        (first,) = [row for row in findings(LockFinding.Kind.WAIT) if TABLE in row.detail["locked"]]
        assert watch()["waits"] >= 1
        (second,) = [row for row in findings(LockFinding.Kind.WAIT) if TABLE in row.detail["locked"]]
    assert (second.pk, second.first_seen_at) == (first.pk, first.first_seen_at)
    assert second.seconds > first.seconds
    assert second.last_seen_at > first.last_seen_at
    (line,) = finding_lines(second)
    assert f"for {TABLE}" in line
    assert "secret" not in line


@has_locks
def test_a_deadlock_is_counted_and_its_story_kept():
    before = diagnostics().deadlocks(fresh())
    if INNODB:
        watch()
    numbers, error = deadlock()
    if INNODB:
        assert watch()["deadlocks"] == 1
        (report, *_) = findings()
    else:
        count_refusal("ack", ErrorKind.DEADLOCK, error, using="default", attempt=1, redone=True)
        recorder.flush()
        (report,) = findings()
    victim, other = sorted(report.detail["parties"], key=lambda party: not party["rolled_back"])
    assert {victim["session"], other["session"]} == set(numbers)
    assert (victim["rolled_back"], other["rolled_back"]) == (True, False)
    assert victim["statement"].startswith(f"UPDATE {TABLE} SET note")
    assert "secret" not in str(report.detail)
    for party in (victim, other):
        assert party["holds"]
        assert party["waits_for"]
    if INNODB:
        assert other["holds"] == victim["waits_for"]
        assert victim["holds"] == other["waits_for"]
        assert all(f"{TABLE}, index PRIMARY, record" in lock for lock in victim["holds"])
        assert other["statement"] == victim["statement"]
    else:
        assert f'in relation "{TABLE}"' in victim["waits_for"][0]
        assert "server's log" in report.detail["unseen"]
    lines = finding_lines(report)
    assert sum("was rolled back" in line for line in lines) == 1
    # PostgreSQL's sessions report what they counted a little later.
    wait_until(lambda: diagnostics().deadlocks(fresh()) == before + 1)
    if INNODB:
        # Nothing new, so the long text is not asked for again.
        assert watch()["deadlocks"] == 0


@has_locks
def test_one_process_at_a_time_looks_and_it_costs_the_others_one_statement(django_assert_max_num_queries):
    watch()
    with django_assert_max_num_queries(1):
        assert lock_watch.run_once(recorder.load(), using="default") == Counter()
    recorder.flush()
    assert recorder.snapshot().acquired == recorder.snapshot().failed == 0


@has_locks
def test_an_idle_look_costs_a_handful_of_statements(django_assert_max_num_queries):
    watch()
    expire(lock_watch.TURN)
    with django_assert_max_num_queries(8):
        lock_watch.run_once(recorder.load(), using="default")


@pytest.mark.skipif(VENDOR != "mysql", reason="only MySQL counts it")
def test_statements_that_wait_for_locks_are_told_and_kept(monkeypatch):
    monkeypatch.setattr(lock_watch, "SLOW_SECONDS", 0.01)
    # Other tests let statements wait for longer.
    monkeypatch.setattr(lock_watch, "KEPT_MAX", 1000)
    with connection.cursor() as cursor:
        # Full after ten thousand kinds of statements: then no new one is counted by itself.
        cursor.execute("TRUNCATE performance_schema.events_statements_summary_by_digest")
    with one_waits():
        wait_until(lambda: any(wait.seconds > 0.05 for wait in diagnostics().waits(connection)))
    slow = next(one for one in diagnostics().slow_statements(connection, 1000) if TABLE in one.statement)
    assert slow.lock_seconds > 0.01
    assert slow.runs >= 2
    assert watch()["slow_statements"] >= 1
    (first,) = [row for row in findings(LockFinding.Kind.SLOW) if TABLE in row.detail["statement"]]
    watch()
    # It has not waited since, so it is not written again.
    (second,) = [row for row in findings(LockFinding.Kind.SLOW) if TABLE in row.detail["statement"]]
    assert second.last_seen_at == first.last_seen_at


@pytest.mark.skipif(VENDOR == "mysql", reason="MySQL counts them")
def test_where_slow_statements_are_not_counted_a_sentence_says_so():
    found = read_server(using="default")
    assert found.slow is None
    assert len(found.problems) == 1
    assert found.problems[0].endswith(".")


@pytest.mark.skipif(VENDOR != "sqlite", reason="the others tell")
def test_sqlite_says_that_there_is_nothing_to_see():
    found = read_server(using="default")
    assert (found.waits, found.deadlocks, found.slow) == (None, None, None)
    assert "whole file" in found.problems[0]
    assert lock_watch.run_once(recorder.load(), using="default") == Counter()
    assert not LockRow.objects.exists()


@pytest.fixture
def poor(request):
    """The test database seen by an account that may do nothing else."""
    user = "poor_locks"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'poor'")
        cursor.execute(f"GRANT ALL ON `{connection.settings_dict['NAME']}`.* TO '{user}'@'%'")
    mine, other = connections["default"], connection.copy()
    other.settings_dict = {**mine.settings_dict, "USER": user, "PASSWORD": "poor"}
    connections["default"] = other
    yield
    other.close()
    connections["default"] = mine
    with connection.cursor() as cursor:
        cursor.execute(f"DROP USER '{user}'@'%'")


@pytest.mark.skipif(not INNODB, reason="PostgreSQL hides statements, not waits")
def test_without_rights_there_are_sentences_and_no_errors(poor, caplog):
    found = read_server(using="default")
    assert (found.waits, found.deadlocks) == (None, None)
    assert any("GRANT PROCESS" in problem for problem in found.problems)
    if VENDOR == "mysql":
        assert any("GRANT SELECT ON performance_schema" in problem for problem in found.problems)
    caplog.set_level("INFO", "jobqueue.locks")
    assert watch() == Counter()
    said = [line for line in caplog.messages if "lock monitoring is limited" in line]
    assert len(said) == len(found.problems)
    watch()
    assert len([line for line in caplog.messages if "lock monitoring is limited" in line]) == len(said)


STATEMENTS = {
    "UPDATE a SET b = 'x''y\\'z', c = 5 WHERE d IN (1, 2, 3)": "UPDATE a SET b = ?, c = ? WHERE d IN (?, ...)",
    "INSERT INTO t1 VALUES (0xff, -1.5, 'cut off in the mid": "INSERT INTO t1 VALUES (?, ...)",
    "SELECT `a 1`, t2.c3 FROM t2\n  WHERE x = $1": "SELECT `a 1`, t2.c3 FROM t2 WHERE x = $1",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_are_shown_without_their_values(statement):
    assert without_values(statement) == STATEMENTS[statement]


def test_double_quotes_are_strings_on_mysql_and_names_elsewhere():
    assert without_values('SET "a" = 1') == 'SET "a" = ?'
    assert without_values('SET a = "secret', QUOTES) == "SET a = ?"


@pytest.mark.skipif(not INNODB, reason="InnoDB's text")
def test_texts_that_were_cut_short_or_have_no_deadlock_are_read_as_far_as_they_go():
    head = "------------------------\nLATEST DETECTED DEADLOCK\n------------------------\n2026-01-01 00:00:00 0x1\n"
    one = "*** (1) TRANSACTION:\nTRANSACTION 7, ACTIVE 0 sec\nMySQL thread id 5, OS thread handle 1, query id 2 h u\n"
    with connection.cursor() as cursor:
        assert read_deadlock(cursor, "BACKGROUND THREAD\nnothing") is None
        report = read_deadlock(cursor, f"{head}{one}UPDATE a\nSET b = 'x'\n\n*** (2) TRANSACTION:\nTRANSACTION 8, AC")
    assert [party.session for party in report.parties] == [5, 0]
    assert report.parties[0].statement == "UPDATE a SET b = ?"
    assert "cut short" in report.unseen


def test_the_story_comes_through_the_signal_of_our_retries():
    assert any(key[0] == "jobqueue.locks" for key, *_ in signals.transaction_retried.receivers)
    count_refusal("ack", None, ValueError("no deadlock"), using="default", attempt=1, redone=True)
    recorder.flush()
    assert findings() == []


def test_a_refused_question_leaves_the_callers_transaction_usable():
    from django.db import transaction

    with transaction.atomic():
        read_server(using="default")
        lock = LockRow.objects.count()
    assert lock == 0
    with pytest.raises(NotSupported), lease_lock("x", 5):
        raise NotSupported("out")
