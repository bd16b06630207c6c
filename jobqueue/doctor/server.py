"""The database server: locks, writes, its settings that the pages on the servers recommend, SQLite's file, clocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from django.db import Error, connections

from jobqueue.checks import messages, server_problems
from jobqueue.db import vendor
from jobqueue.db.clock import SKEW_SECONDS, Selected, UtcNow, compare_clocks
from jobqueue.doctor.finding import SHOWN, Finding, Level, Need, check, report, report_system_checks
from jobqueue.explain import database, row_locks
from jobqueue.explain.states import is_in_zone, zone_offset
from jobqueue.models import Job
from jobqueue.ordering import SCHEDULED
from jobqueue.payload import JSON

LOCK_WAIT_SECONDS_MAX = 50.0
BUSY_MILLISECONDS_MIN = 1000
#: jobs that are looked at for due times in the zone of a session
NEWEST_MAX = 500
MOUNTS = Path("/proc/self/mounts")
#: file systems on which locks or shared memory of several hosts do not work as SQLite needs them
NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "ceph", "lustre", "9p", "afs", "gfs2")


@check("table_locks", "no table of jobqueue is locked as a whole", Need.DATABASE, table_locked=Level.ERROR)
def locked_tables(using: str) -> Iterator[Finding]:
    """On MariaDB that is seen only while sessions wait for it."""
    for one in row_locks.locked_tables(using):
        yield report(
            "table_locked",
            f"{one.text} Workers cannot claim or end jobs, and leases run out.",
            f"{one.next_step} See docs/reference/explain.md#waits-for-locks.",
            dict(one.evidence),
        )


@check("writes", "the database takes writes", Need.DATABASE, read_only=Level.ERROR)
def read_only(using: str) -> Iterator[Finding]:
    """It takes none after a failover, for example."""
    for one in database.read_only(using):
        yield report("read_only", one.text, one.next_step, dict(one.evidence))


@check("server", "the server, its sessions and the job table are fit for a queue", Need.DATABASE)
def system_checks(using: str) -> Iterator[Finding]:
    """The system checks that ask the server."""
    return report_system_checks(messages(server_problems(using)))


class Rule(NamedTuple):
    """What a setting must be. It is judged where the server has a setting of this name."""

    name: str
    is_right: Callable[[str], bool]
    id: str
    text: str
    fix: str


_MYSQL_PAGE = "See docs/howto/mysql-settings.md."
_LOST = "a job whose enqueue was committed, or the end of one, can be lost in a power cut."
RULES = [
    Rule(
        "innodb_flush_log_at_trx_commit",
        lambda value: value == "1",
        "durability",
        _LOST,
        f"Run SET GLOBAL innodb_flush_log_at_trx_commit = 1, and set it in the server's configuration. {_MYSQL_PAGE}",
    ),
    Rule(
        "sync_binlog",
        lambda value: value == "1",
        "durability",
        _LOST,
        f"Run SET GLOBAL sync_binlog = 1, and set it in the server's configuration. {_MYSQL_PAGE}",
    ),
    Rule(
        "fsync",
        lambda value: value == "on",
        "durability",
        "all data can be lost in a power cut.",
        "Set fsync = on in postgresql.conf, and reload it.",
    ),
    Rule(
        "synchronous_commit",
        lambda value: value != "off",
        "durability",
        _LOST,
        "Set synchronous_commit = on for the server, the account or the database that has it off.",
    ),
    Rule(
        "innodb_lock_wait_timeout",
        lambda value: float(value) <= LOCK_WAIT_SECONDS_MAX,
        "lock_wait_timeout",
        "an enqueue waits for so many seconds for the lock of another session before it is tried again.",
        f"Set it to 5 to 50 s. {_MYSQL_PAGE}",
    ),
    Rule(
        "autovacuum",
        lambda value: value == "on",
        "autovacuum_off",
        "nothing removes dead rows of jobs, so claims become slower by the hour.",
        "Set autovacuum = on in postgresql.conf, and reload it. See docs/howto/postgresql-settings.md.",
    ),
    Rule(
        "idle_in_transaction_session_timeout",
        lambda value: value != "0",
        "idle_transactions",
        "the session of a program that hangs inside a transaction keeps its row locks for ever.",
        "Set it to a few minutes for accounts of programs. See docs/howto/postgresql-settings.md.",
    ),
    Rule(
        "journal_mode",
        lambda value: value in ("wal", "memory"),
        "no_wal",
        "readers and the writer block each other.",
        'Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL". See docs/howto/sqlite.md.',
    ),
    Rule(
        "busy_timeout",
        lambda value: int(value) >= BUSY_MILLISECONDS_MIN,
        "busy_timeout",
        "a write fails with 'database is locked' when another one takes longer than so many milliseconds.",
        'Set OPTIONS["timeout"] = 20 (seconds). See docs/howto/sqlite.md.',
    ),
]


@check(
    "server_values",
    "the settings of the server are fit for a queue",
    Need.DATABASE,
    idle_limit=Level.WARNING,
    durability=Level.WARNING,
    lock_wait_timeout=Level.WARNING,
    autovacuum_off=Level.WARNING,
    idle_transactions=Level.INFO,
    no_wal=Level.WARNING,
    busy_timeout=Level.WARNING,
)
def server_values(using: str) -> Iterator[Finding]:
    """By RULES, and by what Django has to know."""
    values = vendor(using).settings(connections[using])
    for rule in RULES:
        value = values.get(rule.name)
        # Without a binary log the server writes nothing to synchronise.
        unused = rule.name == "sync_binlog" and values.get("log_bin") != "on"
        if value is not None and not unused and not rule.is_right(value):
            text = f"{rule.name} is {value}: {rule.text}"
            yield report(rule.id, text, rule.fix, {"name": rule.name, "value": value})
    yield from _idle_limit(using, values)


def _idle_limit(using: str, values: Mapping[str, str]) -> Iterator[Finding]:
    """The server must not close connections that Django keeps."""
    limit, age = values.get("wait_timeout"), connections[using].settings_dict["CONN_MAX_AGE"]
    if limit is None or age == 0 or (age is not None and age < float(limit)):
        return
    kept = "without a limit" if age is None else f"for {age} s"
    yield report(
        "idle_limit",
        f"The server closes a connection that is idle for {limit} s (wait_timeout), and Django keeps it {kept} "
        "(CONN_MAX_AGE): a request or job that finds it closed may fail.",
        f"Set CONN_MAX_AGE below {limit}, or raise wait_timeout; set CONN_HEALTH_CHECKS = True.",
        {"wait_timeout": limit, "conn_max_age": age},
    )


@check(
    "sqlite_file",
    "the file of SQLite is on a local disk",
    Need.DATABASE,
    network_file=Level.ERROR,
    memory_database=Level.WARNING,
)
def sqlite_file(using: str) -> Iterator[Finding]:
    """Processes can share the file on a local disk only."""
    file = vendor(using).settings(connections[using]).get("file")
    if file is None:
        return
    if not file:
        yield report(
            "memory_database",
            "The queue is in memory: each process has a database of its own, so workers see no job of other processes.",
            "Give DATABASES a file as NAME. See docs/howto/sqlite.md.",
            {},
        )
        return
    mounted = file_system(file, MOUNTS)
    if mounted is not None and mounted[1].startswith(NETWORK):
        yield report(
            "network_file",
            f"The file {file} is on a network file system ({mounted[1]} at {mounted[0]}): the write-ahead log does not "
            "work there, and the file can be damaged.",
            "Move it to a local disk, or use a database server.",
            {"file": file, "mounted_at": mounted[0], "file_system": mounted[1]},
        )


def file_system(file: str, mounts: Path) -> tuple[str, str] | None:
    """Where the file system of a file is mounted, and its type. None where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    path = os.path.realpath(file)
    found = [(words[1].replace("\\040", " "), words[2]) for line in lines if len(words := line.split()) > 2]
    # If several file systems are mounted at one place, the last one counts.
    holds = [one for one in found if path == one[0] or path.startswith(one[0].rstrip("/") + "/")]
    return max(reversed(holds), key=lambda one: len(one[0]), default=None)


@check("isolation", "the server's own isolation level is READ COMMITTED", Need.DATABASE, server_isolation=Level.INFO)
def default_isolation(using: str) -> Iterator[Finding]:
    """W022 is about the sessions of Django."""
    level = vendor(using).default_isolation(connections[using])
    if level not in (None, "read committed"):
        yield report(
            "server_isolation",
            f"The server's own isolation level is {level}. Django sets its own; programs with plain SQL that set none "
            "have this one. Their statements on job_queue can lock gaps into which others insert jobs (MySQL, "
            "MariaDB), or fail because a row has changed (PostgreSQL).",
            "Let such programs begin with SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; on PostgreSQL, SET "
            "SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED.",
            {"level": level},
        )


@check("clock", "the clocks of this host and the server agree", Need.DATABASE, clock_skew=Level.WARNING)
def clock_skew(using: str) -> Iterator[Finding]:
    """The time of the round trip does not count as skew."""
    found = compare_clocks(using)
    ahead = found.ahead_seconds
    if abs(ahead) > SKEW_SECONDS:
        which = "ahead of" if ahead > 0 else "behind"
        yield report(
            "clock_skew",
            f"The clock of this host is {abs(ahead):.1f} s {which} that of the database server. Leases, due times and "
            "schedules go by the server's clock and stay right. What this host computes from its own clock is wrong by "
            "that much: run_after and expires of a task, and times in logs.",
            "Run NTP on both hosts; timedatectl shows whether it works.",
            {"host_ahead_seconds": round(ahead, 3), "host": found.host.isoformat(), "server": found.server.isoformat()},
        )


@check("zone", "NOW() of a session is UTC", Need.DATABASE, session_zone=Level.INFO)
def session_zone(using: str) -> Iterator[Finding]:
    """A warning if jobs wait whose due time may have been written in that zone."""
    offset = zone_offset(using)
    if not offset:
        return
    seconds = offset.total_seconds()
    text = (
        f"NOW() of a session is {seconds / 3600:+g} h from UTC. The product does not use it. Plain SQL that writes "
        "NOW() or CURRENT_TIMESTAMP into run_at or lock_until would be wrong by that much."
    )
    fix = "Use UTC_TIMESTAMP(6) in statements of your own, as docs/reference/sql.md does."
    evidence: dict[str, JSON] = {"zone_seconds": seconds}
    jobs = _in_zone(offset, using)
    if jobs:
        text += (
            f" It may have done so: of the newest {NEWEST_MAX:,} jobs, {len(jobs)} wait whose run_at is that far "
            f"behind their enqueue, such as job {jobs[0]}."
        )
        fix += " Let the jobs run that should have been due at once: jobs retry with their ids."
        evidence["jobs"] = list(jobs[:SHOWN])
    yield report("session_zone", text, fix, evidence, level=Level.WARNING if jobs else None)


def _in_zone(offset: timedelta, using: str) -> list[int]:
    """The newest jobs first. Reads NEWEST_MAX rows by their key."""
    newest = Job.objects.using(using).order_by("-pk").annotate(now=Selected(UtcNow()))
    columns = ("pk", "status", "attempts", "wait_reason", "run_at", "created_at", "now")
    try:
        rows = list(newest.values_list(*columns)[:NEWEST_MAX])
    except Error:
        # Another check tells that the table is not there.
        return []
    return [
        job_id
        for job_id, status, attempts, waits, run_at, created_at, now in rows
        if status == Job.Status.READY and not attempts and waits in (None, SCHEDULED) and run_at > now
        if is_in_zone(run_at, created_at, now, offset)
    ]
