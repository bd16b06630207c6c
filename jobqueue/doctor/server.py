"""The settings of the server and of the driver that docs/howto/mysql-settings.md and its neighbours recommend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connections
from django.utils import translation

from jobqueue.db import vendor
from jobqueue.doctor.finding import Finding, Level
from jobqueue.explain import refusals

LOCK_WAIT_SECONDS_MAX = 50.0
BUSY_MILLISECONDS_MIN = 1000


class Rule(NamedTuple):
    """What a setting must be. It is judged where the server has a setting of this name."""

    name: str
    is_right: Callable[[str], bool]
    level: Level
    id: str
    text: str
    fix: str


_MYSQL_PAGE = "See docs/howto/mysql-settings.md."
_LOST = "a job whose enqueue was committed, or the end of one, can be lost in a power cut."
RULES = [
    Rule(
        "innodb_flush_log_at_trx_commit",
        lambda value: value == "1",
        Level.WARNING,
        "durability",
        _LOST,
        f"Run SET GLOBAL innodb_flush_log_at_trx_commit = 1, and set it in the server's configuration. {_MYSQL_PAGE}",
    ),
    Rule(
        "sync_binlog",
        lambda value: value == "1",
        Level.WARNING,
        "durability",
        _LOST,
        f"Run SET GLOBAL sync_binlog = 1, and set it in the server's configuration. {_MYSQL_PAGE}",
    ),
    Rule(
        "fsync",
        lambda value: value == "on",
        Level.WARNING,
        "durability",
        "all data can be lost in a power cut.",
        "Set fsync = on in postgresql.conf, and reload it.",
    ),
    Rule(
        "synchronous_commit",
        lambda value: value != "off",
        Level.WARNING,
        "durability",
        _LOST,
        "Set synchronous_commit = on for the server, the account or the database that has it off.",
    ),
    Rule(
        "innodb_lock_wait_timeout",
        lambda value: float(value) <= LOCK_WAIT_SECONDS_MAX,
        Level.WARNING,
        "lock_wait_timeout",
        "an enqueue waits for so many seconds for the lock of another session before it is tried again.",
        f"Set it to 5 to 50 s. {_MYSQL_PAGE}",
    ),
    Rule(
        "autovacuum",
        lambda value: value == "on",
        Level.WARNING,
        "autovacuum_off",
        "nothing removes dead rows of jobs, so claims become slower by the hour.",
        "Set autovacuum = on in postgresql.conf, and reload it. See docs/howto/postgresql-settings.md.",
    ),
    Rule(
        "idle_in_transaction_session_timeout",
        lambda value: value != "0",
        Level.INFO,
        "idle_transactions",
        "the session of a program that hangs inside a transaction keeps its row locks for ever.",
        "Set it to a few minutes for accounts of programs. See docs/howto/postgresql-settings.md.",
    ),
    Rule(
        "journal_mode",
        lambda value: value in ("wal", "memory"),
        Level.WARNING,
        "no_wal",
        "readers and the writer block each other.",
        'Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL". See docs/howto/sqlite.md.',
    ),
    Rule(
        "busy_timeout",
        lambda value: int(value) >= BUSY_MILLISECONDS_MIN,
        Level.WARNING,
        "busy_timeout",
        "a write fails with 'database is locked' when another one takes longer than so many milliseconds.",
        'Set OPTIONS["timeout"] = 20 (seconds). See docs/howto/sqlite.md.',
    ),
]
#: Driver options that end the wait for a lost connection. Without them, the thread waits for ever.
_TIMEOUTS = {"mysql": ("read_timeout", "write_timeout"), "postgresql": ("tcp_user_timeout", "keepalives_idle")}


def server_values(using: str) -> Iterator[Finding]:
    """durability, lock_wait_timeout, idle_limit, autovacuum_off, idle_transactions, no_wal, busy_timeout."""
    values = vendor(using).set_up.values(connections[using])
    for rule in RULES:
        value = values.get(rule.name)
        # Without a binary log the server writes nothing to synchronise.
        unused = rule.name == "sync_binlog" and values.get("log_bin") != "on"
        if value is not None and not unused and not rule.is_right(value):
            text = f"{rule.name} is {value}: {rule.text}"
            yield Finding(rule.level, rule.id, text, rule.fix, {"name": rule.name, "value": value})
    yield from _idle_limit(using, values)


def _idle_limit(using: str, values: Mapping[str, str]) -> Iterator[Finding]:
    """The server must not close connections that Django keeps."""
    limit, age = values.get("wait_timeout"), connections[using].settings_dict["CONN_MAX_AGE"]
    if limit is None or age == 0 or (age is not None and age < float(limit)):
        return
    kept = "without a limit" if age is None else f"for {age} s"
    yield Finding(
        Level.WARNING,
        "idle_limit",
        f"The server closes a connection that is idle for {limit} s (wait_timeout), and Django keeps it {kept} "
        "(CONN_MAX_AGE): a request or job that finds it closed may fail.",
        f"Set CONN_MAX_AGE below {limit}, or raise wait_timeout; set CONN_HEALTH_CHECKS = True.",
        {"wait_timeout": limit, "conn_max_age": age},
    )


def read_only(using: str) -> Iterator[Finding]:
    """read_only."""
    with translation.override(None):
        found = refusals.read_only(using)
    for one in found:
        yield Finding(Level.ERROR, "read_only", one.text, one.next_step, dict(one.evidence))


def default_isolation(using: str) -> Iterator[Finding]:
    """server_isolation. W022 is about the sessions of Django."""
    level = vendor(using).set_up.default_isolation(connections[using])
    if level not in (None, "read committed"):
        yield Finding(
            Level.INFO,
            "server_isolation",
            f"The server's own isolation level is {level}. Django sets its own; programs with plain SQL that set none "
            "have this one. Their statements on job_queue can lock gaps into which others insert jobs (MySQL, "
            "MariaDB), or fail because a row has changed (PostgreSQL).",
            "Let such programs begin with SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; on PostgreSQL, SET "
            "SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED.",
            {"level": level},
        )


def driver_timeouts(using: str) -> Iterator[Finding]:
    """driver_timeouts."""
    entry: dict[str, Any] = settings.DATABASES.get(using, {})
    given = {**(entry.get("OPTIONS") or {})}
    wanted = _TIMEOUTS.get(str(connections[using].vendor), ())
    if missing := [name for name in wanted if not given.get(name)]:
        yield Finding(
            Level.INFO,
            "driver_timeouts",
            f"OPTIONS of DATABASES[{using!r}] lacks {', '.join(missing)}: a connection whose packets are lost blocks "
            "its thread until the operating system gives up, which can take hours.",
            "Set them as docs/howto/mysql-settings.md and docs/howto/postgresql-settings.md show.",
            {"missing": list(missing)},
        )
