"""Redone transactions are counted by verb and error: in memory, in the table, on the admin page and in /metrics."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue
from jobqueue.counter import ShardedCounter
from jobqueue.db import background_writer
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.mysql.features import MySQL
from jobqueue.db.postgresql.features import PostgreSQL
from jobqueue.db.retry import ATTEMPTS, VERBS, Refusal, report_refusal, retry_transient
from jobqueue.db.sqlite.features import SQLite
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown
from jobqueue.lockstats import recorder
from jobqueue.lockstats.recorder import WINDOWS_MAX
from jobqueue.lockstats.report import read_redone
from jobqueue.maintenance import cleaner
from jobqueue.models import LockStat, OutboxEvent
from jobqueue.outbox import publish
from jobqueue.outbox.statements import NO_DESTINATION
from jobqueue.signals import transaction_retried
from jobqueue.testing import inject
from jobqueue.transactions import retry_transaction
from jobqueue.transitions import ack
from jobqueue.worker.monitor.housekeeping import Housekeeping
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Scoreboard, State
from tests.admin.helpers import client_of, person, root, text_of
from tests.factories import claim_one, make_job
from tests.marks import committed
from tests.patience import wait_until
from tests.settings import VENDOR

PAGE = "/admin/jobqueue/lockstat/"
#: what the two faults of jobqueue.testing are here: SQLite has one error for both
DEADLOCK, LOCK_TIMEOUT = ("busy", "busy") if VENDOR == "sqlite" else ("deadlock", "lock_timeout")


def counted(seconds=60):
    """verb, error, redone, given up of everything that was counted."""
    recorder.flush()
    found = read_redone(seconds=seconds, using="default")
    return [(one.verb, one.error, one.redone, one.given_up) for one in found]


def leased():
    make_job()
    return claim_one()


@committed
def test_an_ack_after_a_deadlock_and_an_enqueue_after_a_lock_timeout_are_counted():
    lease = leased()
    with inject("deadlock", at="^UPDATE"):
        ack(lease)
    with inject("lock_timeout", at="^INSERT", times=2):
        enqueue("q", 1)
    assert sorted(counted()) == [("ack", DEADLOCK, 1, 0), ("enqueue", LOCK_TIMEOUT, 2, 0)]


@committed
@pytest.mark.skipif(VENDOR != "sqlite", reason="tests/faults has the real deadlocks and lock timeouts of servers")
def test_an_enqueue_behind_another_connection_that_writes_is_redone():
    other = connection.copy()

    def let_go(**facts):
        other.rollback()

    transaction_retried.connect(let_go)
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 10")
        other.set_autocommit(False)
        other.cursor().execute("DELETE FROM job_queue")
        enqueue("q", 1)
    finally:
        transaction_retried.disconnect(let_go)
        other.close()
        connection.close()
    assert counted() == [("enqueue", "busy", 1, 0)]


@committed
def test_a_transaction_that_was_refused_six_times_is_given_up():
    with inject("deadlock", at="^INSERT", times=None), pytest.raises(DatabaseBusy):
        enqueue("q", 1)
    assert counted() == [("enqueue", DEADLOCK, ATTEMPTS - 1, 1)]


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no network that loses an answer")
def test_a_write_whose_answer_was_lost_is_given_up_where_it_must_not_be_repeated():
    with inject("lost_connection", at="^INSERT", answer_lost=True), pytest.raises(OutcomeUnknown):
        enqueue("q", 1)
    with inject("lost_connection", at="^INSERT", answer_lost=True):
        enqueue("q", 1, dedupe_key="k")
    assert counted() == [("enqueue", "lost_connection", 1, 1)]


@committed
def test_a_connection_that_is_lost_at_the_last_try_ends_in_its_own_error():
    tries = iter(["deadlock"] * (ATTEMPTS - 1) + ["lost_connection"])

    def refused():
        with inject(next(tries)):
            connection.cursor().execute("SELECT 1")

    with pytest.raises(OperationalError):
        retry_transient("bulk", refused, using="default")
    assert next(tries, None) is None
    assert sorted(counted()) == sorted([("bulk", DEADLOCK, 5, 0), ("bulk", "lost_connection", 0, 1)])


@committed
def test_a_callers_own_transaction_is_not_redone_and_not_counted():
    with pytest.raises(OperationalError), transaction.atomic(), inject("deadlock", at="^INSERT"):
        enqueue("q", 1)
    with pytest.raises(OperationalError), transaction.atomic(), inject("deadlock", at="^INSERT"):
        publish("topic", {})
    assert counted() == []


@committed
def test_functions_of_the_caller_are_counted_as_retry_transaction():
    @retry_transaction(attempts=2)
    def work():
        enqueue("q", 1)

    with inject("deadlock", at="^INSERT"):
        work()
    with inject("deadlock", at="^INSERT", times=None), pytest.raises(OperationalError):
        work()
    assert counted() == [("retry_transaction", DEADLOCK, 2, 1)]


@committed
def test_counting_writes_nothing_before_the_next_flush_and_nothing_without_news(django_assert_num_queries):
    counter = ShardedCounter("c")
    with CaptureQueriesContext(connection) as captured, inject("deadlock") as injected:
        counter.add()
    assert injected.count == 1
    assert not [query for query in captured.captured_queries if "_stat" in str(query["sql"])]
    assert not LockStat.objects.exists()
    recorder.flush()
    with django_assert_num_queries(0):
        recorder.flush()
    assert LockStat.objects.count() == 1


@committed
def test_rows_are_totals_of_a_process_and_a_minute_and_processes_are_summed():
    for _ in range(2):
        report_refusal(Refusal("ack", ErrorKind.DEADLOCK, True))
        recorder.flush()
    assert [(row.contended, row.failed) for row in LockStat.objects.all()] == [(2, 0)]
    recorder._reset()
    report_refusal(Refusal("ack", ErrorKind.DEADLOCK, False))
    report_refusal(Refusal("claim", ErrorKind.BUSY, True))
    # What was given up is the worst.
    assert counted() == [("ack", "deadlock", 2, 1), ("claim", "busy", 1, 0)]
    assert LockStat.objects.count() == 3


@committed
def test_memory_is_bounded_and_old_rows_are_deleted(settings):
    for verb in VERBS:
        for kind in ErrorKind:
            report_refusal(Refusal(verb, kind, True))
    assert len(recorder._process.buffer._window.counters) == len(VERBS) * len(ErrorKind)
    assert len(recorder._process.buffer._closed) <= WINDOWS_MAX
    recorder.flush()
    LockStat.objects.exclude(lock_key__startswith="ack ").update(counted_at=UtcNowPlus(-101))
    settings.JOBQUEUE = {"LOCK_METRICS_SECONDS": 100}
    gone = cleaner.CLEANERS["figures"].run_once(recorder.load(), using="default").total()
    assert gone == (len(VERBS) - 1) * len(ErrorKind)
    settings.JOBQUEUE = {"LOCK_METRICS_SECONDS": None}
    report_refusal(Refusal("ack", ErrorKind.BUSY, True))
    assert {verb for verb, *_ in counted(3600)} == {"ack"}
    assert len(counted()) == len(ErrorKind)


@pytest.mark.skipif(VENDOR != "sqlite", reason="the errors are those of SQLite")
@pytest.mark.parametrize(
    ("error", "warned"), [("disk I/O error", False), ("attempt to write a readonly database", True)]
)
def test_a_lost_connection_is_not_logged_once_more_by_the_statistics(monkeypatch, caplog, error, warned):
    tries = []

    def flush():
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError(error)

    monkeypatch.setattr(recorder, "flush", flush)
    monkeypatch.setattr(recorder, "is_test_run", lambda: False)
    monkeypatch.setattr(background_writer, "FLUSH_SECONDS", 0.001)
    report_refusal(Refusal("ack", ErrorKind.DEADLOCK, True))
    wait_until(lambda: len(tries) > 1)
    recorder.close()
    assert ("cannot write lock statistics" in caplog.text) == warned


@pytest.mark.django_db
def test_the_page_and_the_command_show_what_was_redone_and_given_up():
    assert "No transaction was redone in this period." in text_of(root().get(PAGE))
    for again in (True, True, False):
        report_refusal(Refusal("ack", ErrorKind.DEADLOCK, again))
    recorder.flush()
    # The figures need no more than the page itself.
    page = text_of(client_of(person("view_lockstat", name="eve")).get(PAGE))
    rows = re.search(r"Redone transactions</h2>(.*?)</table>", page, re.DOTALL)[1]
    cells = [
        re.sub("<[^>]+>", "", cell).strip()
        for cell in re.findall(r'<t[dh] [^>]*role="(?:cell|rowheader)"[^>]*>(.*?)</t[dh]>', rows, re.DOTALL)
    ]
    assert cells[:4] == ["ack", "deadlock", "2", "1"]
    assert "now" in cells[4] or "ago" in cells[4]
    out = StringIO()
    call_command("jobs", "locks", stdout=out)
    assert re.search(r"^  ack  deadlock  redone 2  given up 1  last \S+ ago$", out.getvalue(), re.MULTILINE)
    out = StringIO()
    call_command("jobs", "locks", "--json", stdout=out)
    (found,) = json.loads(out.getvalue())["redone"]
    assert found.pop("last_seen_at")
    assert found == {"verb": "ack", "error": "deadlock", "redone": 2, "given_up": 1}


@pytest.mark.django_db
def test_deadlocks_are_told_by_the_hour_of_the_day_in_utc():
    assert "No transaction met a deadlock in this period." in text_of(root().get(PAGE))
    day = read_now("default").replace(minute=59, second=59, microsecond=999_999) - timedelta(days=1)
    for kind, days, hour, again in [
        ("deadlock", 0, 3, True), ("deadlock", 1, 3, False), ("deadlock", 0, 17, True), ("busy", 0, 5, True),
    ]:  # fmt: skip
        counts = {"contended": 2} if again else {"failed": 1}
        row = LockStat(id=uuid.uuid4().bytes, kind="transaction", lock_key=f"ack {kind}", **counts)
        row.save(force_insert=True)
        LockStat.objects.filter(pk=row.pk).update(counted_at=day.replace(hour=hour) - timedelta(days=days))
    since = ["--since", "4d"]
    out = StringIO()
    call_command("jobs", "locks", *since, stdout=out)
    assert "Deadlocks by hour of the day in UTC\n  03:00  3\n  17:00  2\nLease" in out.getvalue()
    out = StringIO()
    call_command("jobs", "locks", *since, "--json", stdout=out)
    hours = [{"hour": 3, "deadlocks": 3}, {"hour": 17, "deadlocks": 2}]
    assert json.loads(out.getvalue())["deadlock_hours"] == hours
    LockStat.objects.update(counted_at=read_now("default"))
    page = text_of(client_of(person("view_lockstat", name="eve")).get(PAGE))
    section = re.search(r"Deadlocks by hour of the day</h2>(.*?)</table>", page, re.DOTALL)[1]
    assert re.findall(r">\s*(\d\d:00|5)\s*<", section)[1:] == ["5"]


def metrics(scoreboard):
    probe = Probe.__new__(Probe)
    probe._scoreboard = scoreboard
    status, text = probe._metrics()
    assert status == 200
    return text


def test_metrics_sum_the_processes_of_a_worker_and_go_on_when_a_child_is_replaced():
    scoreboard = Scoreboard(2, 1)
    assert "# TYPE jobqueue_worker_transactions_redone_total counter" in metrics(scoreboard)
    for index in (0, 1, -1):
        scoreboard.redone[index].add(Refusal("heartbeat", ErrorKind.LOCK_TIMEOUT, True))
    scoreboard.fill(0)
    scoreboard.slots[0].state = State.RUNNING
    scoreboard.redone[0].add(Refusal("heartbeat", ErrorKind.LOCK_TIMEOUT, False))
    text = metrics(scoreboard)
    labels = '{error="lock_timeout",verb="heartbeat"}'
    assert f"jobqueue_worker_transactions_redone_total{labels} 3.0" in text
    assert f"jobqueue_worker_transactions_given_up_total{labels} 1.0" in text
    assert text.count("transactions_redone_total{") == 1


@committed
def test_metrics_show_how_many_events_wait_for_a_route_or_a_subscriber(settings):
    scoreboard = Scoreboard(1, 1)
    assert "outbox_unrouted" not in metrics(scoreboard), "no outbox, no number"
    settings.JOBQUEUE = {"OUTBOX": {}}
    with transaction.atomic():
        for key in ("a", "a", None):
            publish("nobody.listens", {}, key=key)
    OutboxEvent.objects.update(last_error=NO_DESTINATION)
    house = Housekeeping.__new__(Housekeeping)
    house._using, house._scoreboard = "default", scoreboard
    assert "jobqueue_worker_outbox_unrouted 0.0" in metrics(scoreboard)
    house.count_unrouted()
    # The second event of the key waits for the first one.
    assert "jobqueue_worker_outbox_unrouted 2.0" in metrics(scoreboard)


CODES = {
    "deadlock": [(MySQL, 1213), (PostgreSQL, "40P01")],
    "lock_timeout": [(MySQL, 1205), (MySQL, 3572), (PostgreSQL, "55P03")],
    "serialization": [(MySQL, 1020), (MySQL, 3101), (PostgreSQL, "40001"), (SQLite, "SQLITE_BUSY_SNAPSHOT")],
    "busy": [(SQLite, "SQLITE_BUSY"), (SQLite, "SQLITE_LOCKED")],
    "canceled": [(MySQL, 1317), (MySQL, 3024), (PostgreSQL, "57014")],
    "no_room": [(MySQL, 1021), (PostgreSQL, "53100"), (SQLite, "SQLITE_FULL")],
    "no_connection": [(MySQL, 1040), (MySQL, 1203), (MySQL, 1226), (PostgreSQL, "53300")],
    "lost_connection": [(MySQL, 2013), (PostgreSQL, "57P01"), (SQLite, "SQLITE_IOERR")],
}
WORDS = {"SQLITE_FULL": "database or disk is full", "SQLITE_IOERR": "disk I/O error"}


@pytest.mark.parametrize("kind", ErrorKind)
def test_each_error_has_one_kind(kind):
    for dialect, code in CODES[kind]:
        error = OperationalError(code) if dialect is MySQL else OperationalError(WORDS.get(code, "database is locked"))
        error.__cause__ = Exception()
        error.__cause__.sqlstate = error.__cause__.sqlite_errorname = code
        assert dialect().error_kind(error) is kind, code
