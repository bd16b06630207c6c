"""Where the queue runs: the code and settings of this host, the servers they name, and the database server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import run_checks
from django.db import Error, connections

from jobqueue.base.payload import JSON
from jobqueue.checks import messages, server_problems
from jobqueue.conf import load
from jobqueue.db import fault_vendor, vendor
from jobqueue.db.clock import SKEW_SECONDS, Selected, UtcNow, compare_clocks
from jobqueue.doctor.finding import SHOWN, Finding, Level, Need, check, report, report_system_checks
from jobqueue.explain import database, row_locks
from jobqueue.explain.states import is_in_zone, zone_offset
from jobqueue.failures import summary
from jobqueue.models import Job
from jobqueue.ordering import SCHEDULED
from jobqueue.outbox.routes import Routes
from jobqueue.tasks import registry
from jobqueue.wakeup.redis_client import connect

#: a shorter lease lapses when a host is busy, or the database restarts
LEASE_SECONDS_MIN = 10.0
#: how long a server may take to answer; those of a check are asked at the same time
ANSWER_SECONDS = 2.0
#: how long a library may take in all: its first use imports it, and not all keep to the limit
GIVE_UP_SECONDS = 4.0
_NO_SERVER = (None, "auto", "off")
_WITHOUT = {"WAKEUP": "Without wake-ups, workers find new jobs only by polling.", "REDIS_URL": "redis_lock() fails."}


@check("task_modules", "all tasks.py can be imported", Need.NOTHING, task_module_failed=Level.ERROR)
def task_modules(using: str) -> Iterator[Finding]:
    """Imports first: most other checks are about what tasks.py has."""
    list(registry.discover())
    if files := sorted(registry.failed_files()):
        yield report(
            "task_module_failed",
            "A tasks.py cannot be imported, so workers with this code do not start. The log of this command has the "
            "traceback.",
            "Correct the error in the last file of the traceback that is yours.",
            {"files": list(files)},
        )


@check("settings", "the settings, the tasks and the routes are right", Need.NOTHING)
def settings_checks(using: str) -> Iterator[Finding]:
    """The system checks of settings, tasks, routes, schedules and nested retries."""
    return report_system_checks(run_checks(tags=["jobqueue"]))


@check("driver", "the driver does not wait without a limit", Need.NOTHING, driver_timeouts=Level.INFO)
def driver_timeouts(using: str) -> Iterator[Finding]:
    """The options that the pages on the servers show."""
    entry: dict[str, Any] = settings.DATABASES.get(using, {})
    given = {**(entry.get("OPTIONS") or {})}
    found = fault_vendor(using)
    if missing := [name for name in found.timeout_options if not given.get(name)]:
        yield report(
            "driver_timeouts",
            f"OPTIONS of DATABASES[{using!r}] lacks {', '.join(missing)}: a connection whose packets are lost blocks "
            "its thread until the operating system gives up, which can take hours.",
            f"Set them as {found.page} shows.",
            {"missing": list(missing)},
        )


@check("lease", "leases are long enough", Need.NOTHING, lease_short=Level.WARNING)
def lease_length(using: str) -> Iterator[Finding]:
    """E003 is about a heartbeat that does not fit into it."""
    found = load()
    if found.lease_seconds < LEASE_SECONDS_MIN:
        yield report(
            "lease_short",
            f"LEASE_SECONDS is {found.lease_seconds:g} s, with a heartbeat every {found.renew_seconds:g} s. If a "
            "host is busy for that long, or the database restarts, leases run out and their jobs run a second time.",
            f"Set it to {LEASE_SECONDS_MIN:g} s or more. A lease need not be as long as a job, because it is renewed.",
            {"lease_seconds": found.lease_seconds, "heartbeat_seconds": found.renew_seconds},
        )


@check("brokers", "the brokers of outbox routes answer", Need.NOTHING, beside=True, broker_unreachable=Level.ERROR)
def brokers(using: str) -> Iterator[Finding]:
    """E005 and W029 are about routes that lead nowhere."""
    routes = Routes(using, load().outbox_settings.routes)
    # Makes all but those that are wrong.
    routes.problems()
    asked = [_Asked(pattern, partial(made.ping, ANSWER_SECONDS)) for pattern, made in routes.made().items()]
    for pattern, problem in _problems(asked):
        yield report(
            "broker_unreachable",
            f"The broker of the route {pattern!r} of OUTBOX cannot be reached from here: {problem}. Its events wait.",
            "Start the broker, or correct the URL in JOBQUEUE['OUTBOX']['ROUTES']. See docs/howto/brokers.md.",
            {"route": pattern, "error": problem},
        )


@check("redis", "the Redis servers of the settings answer", Need.NOTHING, beside=True, redis_unreachable=Level.WARNING)
def redis_servers(using: str) -> Iterator[Finding]:
    """E004 and E006 are about settings that name no server."""
    found = load()
    places = {"WAKEUP": found.wakeup, "REDIS_URL": found.redis_url}
    asked = [_Asked(name, partial(_ping, name, place)) for name, place in places.items() if place not in _NO_SERVER]
    for name, problem in _problems(asked):
        yield report(
            "redis_unreachable",
            f"The Redis server of JOBQUEUE[{name!r}] cannot be reached from here: {problem}. {_WITHOUT[name]}",
            "Start the server, or correct the setting. See docs/howto/start-jobs-faster.md.",
            {"setting": name, "error": problem},
        )


def _ping(name: str, place: str | None) -> None:
    client = connect(str(place), ANSWER_SECONDS, f"JOBQUEUE[{name!r}]")
    try:
        client.ping()
    finally:
        client.close()


class _Asked(threading.Thread):
    """Asks one server. A daemon: the command ends, whatever a server does."""

    def __init__(self, name: str, ask: Callable[[], object]) -> None:
        super().__init__(name=f"jobqueue-doctor {name}", daemon=True)
        self.about, self.problem = name, ""
        self._ask = ask

    def run(self) -> None:
        try:
            self._ask()
        except Exception as error:
            self.problem = summary(error)


def _problems(asked: Sequence[_Asked]) -> Iterator[tuple[str, str]]:
    """Ask all at the same time; what those are about that did not answer, and why."""
    for one in asked:
        one.start()
    deadline = time.monotonic() + GIVE_UP_SECONDS
    for one in asked:
        one.join(max(0.0, deadline - time.monotonic()))
        if one.is_alive():
            yield one.about, f"no answer within {GIVE_UP_SECONDS:g} s"
        elif one.problem:
            yield one.about, one.problem


#: jobs that are looked at for due times in the zone of a session
NEWEST_MAX = 500
MOUNTS = Path("/proc/self/mounts")
#: file systems on which locks or shared memory of several hosts do not work as SQLite needs them
NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "ceph", "lustre", "9p", "afs", "gfs2")


@check("table_locks", "no table of jobqueue is locked as a whole", Need.DATABASE, table_locked=Level.ERROR)
def locked_tables(using: str) -> Iterator[Finding]:
    """Find tables that are locked as a whole. MariaDB shows them only while sessions wait for the lock."""
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
def server_checks(using: str) -> Iterator[Finding]:
    """The system checks that ask the server."""
    return report_system_checks(messages(server_problems(using)))


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
    """Check the server's settings by the rules of its dialect, and the limit of idle sessions against CONN_MAX_AGE."""
    found = vendor(using)
    values = found.settings(connections[using])
    for rule in found.rules:
        value = values.get(rule.name)
        if value is not None and not rule.is_right(value):
            text = f"{rule.name} is {value}: {rule.text}"
            yield report(rule.id, text, rule.fix, {"name": rule.name, "value": value})
    yield from _idle_limit(using, found.idle_setting, values)


def _idle_limit(using: str, name: str, values: Mapping[str, str]) -> Iterator[Finding]:
    """The server must not close connections that Django keeps."""
    limit, age = values.get(name), connections[using].settings_dict["CONN_MAX_AGE"]
    if limit is None or age == 0 or (age is not None and age < float(limit)):
        return
    kept = "without a limit" if age is None else f"for {age} s"
    yield report(
        "idle_limit",
        f"The server closes a connection that is idle for {limit} s ({name}), and Django keeps it {kept} "
        "(CONN_MAX_AGE): a request or job that finds it closed may fail.",
        f"Set CONN_MAX_AGE below {limit}, or raise {name}; set CONN_HEALTH_CHECKS = True.",
        {name: limit, "conn_max_age": age},
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
