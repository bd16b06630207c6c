"""What the doctor says of clocks, sessions and the settings of the server, each changed for real."""

import os
from contextlib import closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection, connections

from jobqueue import enqueue_many
from jobqueue.db import clock, vendor
from jobqueue.doctor import Level, server, tables, work
from jobqueue.doctor.server import driver_timeouts
from jobqueue.models import Job
from tests.blocking import let_lists_expire
from tests.doctor.helpers import PLAIN, add_worker, ids, the
from tests.marks import committed
from tests.outbox.helpers import other_connection
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db
INNODB = VENDOR in ("mysql", "mariadb")
only_innodb = pytest.mark.skipif(not INNODB, reason="a setting of MySQL and MariaDB")
only_postgres = pytest.mark.skipif(VENDOR != "postgres", reason="a setting of PostgreSQL")
only_sqlite = pytest.mark.skipif(VENDOR != "sqlite", reason="a setting of SQLite")
only_servers = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server")


@pytest.fixture(autouse=True)
def worker(db):
    """One that runs."""
    return add_worker()


@pytest.fixture
def variable(sql):
    """variable("GLOBAL", name, value): set it; the test's end sets it back."""
    before = []

    def change(scope, name, value):
        before.append((scope, name, sql(f"SELECT @@{scope}.{name}")[0][0]))
        sql(f"SET {scope} {name} = {value}")

    yield change
    for scope, name, value in reversed(before):
        sql(f"SET {scope} {name} = %s", [value])


def test_a_healthy_set_up_has_no_finding_but_what_every_test_server_has_for_information():
    from jobqueue.doctor import examine

    findings = examine()
    assert {one.id for one in findings} == PLAIN
    assert not any(one.is_bad for one in findings)


@only_innodb
@pytest.mark.parametrize(("seconds", "words"), [(3600, "behind"), (-90, "ahead of")])
def test_a_server_whose_clock_is_wrong(sql, seconds, words):
    sql("SET timestamp = UNIX_TIMESTAMP() + %s", [seconds])
    try:
        (one,) = server.clock_skew("default")
    finally:
        sql("SET timestamp = DEFAULT")
    assert (one.level, one.id) == (Level.WARNING, "clock_skew")
    assert words in one.text
    assert abs(one.evidence["host_ahead_seconds"] + seconds) < 5


@pytest.mark.parametrize(("seconds", "expected"), [(-60, 1), (60, 1), (0.5, 0), (-0.5, 0)])
def test_a_host_whose_clock_is_wrong(monkeypatch, seconds, expected):
    right = clock.host_now
    monkeypatch.setattr(clock, "host_now", lambda: right() + timedelta(seconds=seconds))
    found = list(server.clock_skew("default"))
    assert len(found) == expected
    for one in found:
        assert abs(one.evidence["host_ahead_seconds"] - seconds) < 1


@only_innodb
def test_the_zone_of_the_session_is_an_information_unless_it_is_utc(variable):
    variable("SESSION", "time_zone", "'+05:30'")
    one = the("session_zone")
    assert (one.level, one.evidence) == (Level.INFO, {"zone_seconds": 19800.0})
    variable("SESSION", "time_zone", "'+00:00'")
    assert list(server.session_zone("default")) == []


@only_innodb
def test_the_isolation_level_of_the_session_is_the_warning_of_the_system_check(variable):
    name = "transaction_isolation" if VENDOR == "mysql" else "tx_isolation"
    variable("SESSION", name, "'REPEATABLE-READ'")
    assert ids() == ["jobqueue.W022"]


@only_innodb
def test_a_server_at_read_committed_is_no_finding(variable):
    name = "transaction_isolation" if VENDOR == "mysql" else "tx_isolation"
    variable("GLOBAL", name, "'READ-COMMITTED'")
    assert "server_isolation" not in [one.id for one in _examine()]


def _examine():
    from jobqueue.doctor import examine

    return examine()


@only_postgres
@committed
def test_a_database_whose_sessions_are_serializable(sql):
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    connection.close()
    try:
        found = {one.id: one.level for one in _examine()}
    finally:
        sql(f"ALTER DATABASE {name} RESET default_transaction_isolation")
        connection.close()
    assert found["server_isolation"] is Level.INFO


@only_innodb
@pytest.mark.parametrize(
    ("scope", "name", "value", "expected"),
    [
        ("GLOBAL", "innodb_flush_log_at_trx_commit", 2, "durability"),
        ("SESSION", "innodb_lock_wait_timeout", 600, "lock_wait_timeout"),
    ],
)
def test_a_variable_that_the_page_advises_against(variable, scope, name, value, expected):
    variable(scope, name, value)
    assert ids() == [expected]
    one = the(expected)
    assert (one.level, one.evidence) == (Level.WARNING, {"name": name, "value": str(value)})


@only_innodb
def test_the_binary_log_is_judged_only_where_there_is_one(variable, sql):
    variable("GLOBAL", "sync_binlog", 0)
    ((is_on,),) = sql("SELECT @@log_bin")
    assert ids() == (["durability"] if is_on else [])


@only_innodb
@pytest.mark.parametrize(("age", "expected"), [(0, []), (20, []), (30, ["idle_limit"]), (None, ["idle_limit"])])
def test_a_server_that_closes_connections_which_django_keeps(variable, monkeypatch, age, expected):
    variable("SESSION", "wait_timeout", 30)
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", age)
    assert ids() == expected


@only_postgres
def test_a_session_that_commits_without_waiting_for_the_disk(sql):
    sql("SET synchronous_commit = off")
    try:
        assert ids() == ["durability"]
    finally:
        sql("RESET synchronous_commit")


@only_postgres
def test_programs_that_may_hang_in_a_transaction_for_ever_are_an_information(sql):
    assert the("idle_transactions").level is Level.INFO
    sql("SET idle_in_transaction_session_timeout = '5min'")
    try:
        assert "idle_transactions" not in [one.id for one in _examine()]
    finally:
        sql("RESET idle_in_transaction_session_timeout")


@only_postgres
@committed
def test_a_server_without_autovacuum(sql):
    def reload(statement, value):
        sql(statement)
        sql("SELECT pg_reload_conf()")
        wait_until(lambda: sql("SHOW autovacuum")[0][0] == value, what="the reload")

    reload("ALTER SYSTEM SET autovacuum = off", "off")
    try:
        assert ids() == ["autovacuum_off"]
    finally:
        reload("ALTER SYSTEM RESET autovacuum", "on")
    assert ids() == []


@only_postgres
@committed
def test_dead_rows_that_nobody_has_removed(sql, monkeypatch):
    monkeypatch.setattr(tables, "DEAD_MIN", 20)
    sql("ALTER TABLE job_queue SET (autovacuum_enabled = off)")
    try:
        enqueue_many("q", range(100))
        Job.objects.update(payload={"n": 1})
        wait_until(lambda: "dead_rows" in ids(), what="the statistics of the update")
        assert the("dead_rows").evidence["dead"] >= 20
        sql("VACUUM job_queue")
        wait_until(lambda: "dead_rows" not in ids(), what="the statistics of the vacuum")
    finally:
        sql("ALTER TABLE job_queue RESET (autovacuum_enabled)")


@only_sqlite
@committed
def test_a_file_without_a_write_ahead_log(sql, tmp_path, monkeypatch):
    # A copy: the mode of a file can be changed only while nobody else has it open, and threads of other tests may have.
    copy = tmp_path / "copy.sqlite3"
    sql(f"VACUUM INTO '{copy}'")
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "NAME", str(copy))
        options = connection.settings_dict["OPTIONS"]
        patch.setitem(options, "init_command", f"{options['init_command']}; PRAGMA journal_mode=DELETE")
        assert ids() == ["no_wal"]
        connection.close()
    assert ids() == []


@only_sqlite
@committed
def test_a_session_that_does_not_wait_for_the_writer(sql):
    ((before,),) = sql("PRAGMA busy_timeout")
    sql("PRAGMA busy_timeout = 0")
    try:
        assert ids() == ["busy_timeout"]
    finally:
        sql(f"PRAGMA busy_timeout = {before}")


@only_sqlite
def test_a_file_on_a_network_file_system_is_an_error(monkeypatch, tmp_path):
    file = os.path.realpath(vendor("default").settings(connection)["file"])
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nhost:/x {os.path.dirname(file)} nfs4 rw 0 0\n")
    monkeypatch.setattr(server, "MOUNTS", mounts)
    one = the("network_file")
    assert (one.level, one.evidence["file_system"]) == (Level.ERROR, "nfs4")
    mounts.write_text(f"host:/x / nfs rw 0 0\n/dev/sda1 {os.path.dirname(file)} ext4 rw 0 0\n")
    assert ids() == []
    monkeypatch.setattr(server, "MOUNTS", tmp_path / "nothing")
    assert ids() == []


@only_sqlite
def test_a_database_in_memory_is_a_warning(monkeypatch):
    entry = {**connection.settings_dict, "NAME": ":memory:", "OPTIONS": {}}
    memory = type(connections["default"])(entry, "default")
    memory.connect()
    # Django leaves a database in memory open.
    with closing(memory.connection):
        monkeypatch.setattr(server, "connections", {"default": memory})
        (one,) = server.sqlite_file("default")
    assert (one.level, one.id) == (Level.WARNING, "memory_database")


@only_servers
def test_the_timeouts_of_the_driver_that_the_pages_show(monkeypatch, settings):
    (one,) = driver_timeouts("default")
    assert one.level is Level.INFO
    given = dict.fromkeys(one.evidence["missing"], 30)
    monkeypatch.setitem(settings.DATABASES["default"], "OPTIONS", given)
    assert list(driver_timeouts("default")) == []


@only_servers
def test_workers_that_may_open_more_connections_than_the_server_has():
    assert ids() == []
    add_worker("w2", concurrency=1000, supervisor_pid=2)
    add_worker("w3", concurrency=1000, supervisor_pid=2)
    assert ids() == ["connections_short"]
    evidence = the("connections_short").evidence
    # Two commands with a monitor each; three processes.
    assert evidence["workers_may_open"] == 6 * 2 + 5 * 3 + 2002
    assert (evidence["commands"], evidence["processes"], evidence["threads"]) == (2, 3, 2002)


@only_servers
def test_workers_that_relay_events_need_two_more_each(settings):
    before = work.budget("default").connections
    settings.JOBQUEUE = {"OUTBOX": {}}
    assert work.budget("default").connections == before + 2


def test_a_server_with_exactly_the_room_for_all_workers_is_not_short_and_is_told_from_a_share_on(monkeypatch):
    limit = work.budget("default").connections
    monkeypatch.setattr(work, "USED_SHARE", 0.5)
    for used, told in ((limit / 2, ["connections_used"]), (limit / 2 - 1, [])):
        use = SimpleNamespace(limit=limit, used=used)
        monkeypatch.setattr(work, "vendor", lambda using, use=use: SimpleNamespace(session_use=lambda connection: use))
        assert [one.id for one in work.connection_budget("default")] == told


@contextmanager
def sessions_open(number):
    """So many more sessions."""
    others = [connections.create_connection("default") for _ in range(number)]
    try:
        for other in others:
            other.ensure_connection()
        yield
    finally:
        for other in others:
            other.close()


@only_innodb
def test_a_server_whose_connections_are_nearly_all_open(variable, monkeypatch):
    monkeypatch.setattr(work, "MONITOR_CONNECTIONS", 0)
    monkeypatch.setattr(work, "PER_CHILD", 0)
    variable("GLOBAL", "max_connections", 20)
    assert "connections_used" not in ids()
    with sessions_open(17):
        assert ids() == ["connections_used"]
        assert the("connections_used").evidence["limit"] == 20


@only_postgres
@committed
def test_a_database_whose_connection_limit_is_reached(sql):
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    sql(f"ALTER DATABASE {name} CONNECTION LIMIT 1")
    try:
        assert ids() == ["connections_short", "connections_used"]
    finally:
        sql(f"ALTER DATABASE {name} CONNECTION LIMIT -1")


@only_servers
@committed
def test_a_transaction_that_is_open_for_long_is_named_with_its_session(monkeypatch):
    monkeypatch.setattr(tables, "OLD_SECONDS", 0)
    with other_connection() as other:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("INSERT INTO job_queue (queue, payload) VALUES ('q', '{}')")
            cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
            session = cursor.fetchone()[0]
        found = wait_until(lambda: idle_ones().get(session), what="the idle transaction in the list")
        # In whatever zone the server is.
        assert 0 <= found["seconds"] < 600
        assert "old_transaction" in ids()
        other.rollback()


def idle_ones():
    """What the finding says of each session that runs no statement."""
    # An old list may show a statement that has just ended.
    let_lists_expire()
    found = list(tables.old_transactions("default"))
    return {one["session"]: one for finding in found for one in finding.evidence["sessions"] if one["idles"]}
