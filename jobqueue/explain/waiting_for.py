"""What a stack says that a thread waits for: a connection to a database, or an answer from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jobqueue.explain.reports import Line, Standing

#: modules that wait on behalf of the code that calls them
_WAITERS = {"threading.py", "queue.py", "selectors.py"}
_WAITING_PACKAGES = ("concurrent/futures/", "asyncio/")
#: functions of asyncio that talk to other services
_STREAMS = {"asyncio/streams.py", "asyncio/selector_events.py", "asyncio/sslproto.py"}
_SERVICE_FILES = {
    "socket.py", "ssl.py", "ftplib.py", "imaplib.py", "nntplib.py", "poplib.py", "smtplib.py", "telnetlib.py",
    "socketserver.py", *_STREAMS,
}  # fmt: skip
_SERVICE_PACKAGES = {
    "http", "urllib", "urllib3", "requests", "requests_toolbelt", "httpx", "httpcore", "h11", "h2", "aiohttp", "anyio",
    "websockets", "websocket", "grpc", "botocore", "boto3", "s3transfer", "google", "azure", "stripe", "twilio",
    "paramiko", "ldap3", "redis", "valkey", "pymemcache", "pymongo", "motor", "elasticsearch", "elastic_transport",
    "opensearchpy", "kombu", "amqp", "pika", "kafka", "confluent_kafka", "xmlrpc", "zeep", "suds", "geventhttpclient",
}  # fmt: skip
_DRIVERS = {
    "MySQLdb", "pymysql", "mysql", "mariadb", "psycopg", "psycopg_binary", "psycopg2", "asyncpg", "aiomysql",
    "oracledb", "cx_Oracle", "pyodbc", "clickhouse_driver", "clickhouse_connect", "cassandra",
    "snowflake", "pg8000", "pymssql",
}  # fmt: skip
_DJANGO = "django/db/"
_OWN, _OWN_LOCKS = "jobqueue/", "jobqueue/locks/"


class Wait(NamedTuple):
    """What a thread waits for. `kind`: "pool" or "connect", which are about connections, "lock", or "service".

    `name` is the library that waits, or the alias of a database; `place` the line that has called it.
    """

    kind: str
    name: str
    place: str


def wait_of(standing: Standing, using: str) -> Wait | None:
    """What the threads wait for; None: for nothing that can be told from their stack.

    A statement on the database `using` itself is none: others tell what it waits for there.
    """
    stack = standing.stack
    place = calling_line(stack)
    for line in reversed(stack):
        if line.file == "psycopg_pool/pool.py" and line.function == "getconn":
            return Wait("pool", standing.database or "psycopg_pool", place)
        if line.file.startswith("sqlalchemy/pool/") and line.function == "_do_get":
            return Wait("pool", "sqlalchemy", place)
        if line.file == "django/db/backends/base/base.py" and line.function == "connect":
            return Wait("connect", standing.database or "django", place)
    if _in_own_lock(stack):
        return Wait("lock", "jobqueue.locks", place)
    inner = next((line for line in reversed(stack) if not _only_waits(line)), None)
    if inner is None or not (_is_service(inner) or _is_database(inner)):
        return None
    if standing.database is not None:
        return None if standing.database == using else Wait("service", f"database {standing.database}", place)
    if inner.file.startswith(_DJANGO):
        return None
    return Wait("service", _library(stack), place)


def runs_statement(standing: Standing, using: str) -> bool:
    """Whether the threads are in a statement on the database `using`."""
    inner = next((line for line in reversed(standing.stack) if not _only_waits(line)), None)
    return standing.database == using and inner is not None and _is_database(inner)


def _in_own_lock(stack: Sequence[Line]) -> bool:
    """Whether the innermost code that is no library's takes a lock of this package."""
    for line in reversed(stack):
        if line.file.startswith(_OWN_LOCKS):
            return True
        if not (_only_waits(line) or _is_database(line) or _is_service(line) or line.file.startswith(_OWN)):
            return False
    return False


def calling_line(stack: Sequence[Line]) -> str:
    """The innermost line outside of libraries that only wait, talk to services or to databases."""
    for line in reversed(stack):
        if not (_only_waits(line) or _is_service(line) or _is_database(line) or _is_pool(line) or _is_lock(line)):
            return line.text
    return stack[-1].text if stack else "-"


def _library(stack: Sequence[Line]) -> str:
    """The outermost of the libraries at the inner end of the stack: the one that the project called."""
    name = "socket"
    for line in reversed(stack):
        if _is_service(line) or _is_database(line):
            name = _package(line).removesuffix(".py")
        elif not _only_waits(line):
            break
    return name


def _package(line: Line) -> str:
    return line.file.partition("/")[0]


def _only_waits(line: Line) -> bool:
    return line.file in _WAITERS or (line.file.startswith(_WAITING_PACKAGES) and line.file not in _STREAMS)


def _is_service(line: Line) -> bool:
    return line.file in _SERVICE_FILES or ("/" in line.file and _package(line) in _SERVICE_PACKAGES)


def _is_database(line: Line) -> bool:
    return _package(line) in _DRIVERS or line.file.startswith(_DJANGO)


def _is_lock(line: Line) -> bool:
    return line.file.startswith((_OWN_LOCKS, "jobqueue/db/")) or line.file == "contextlib.py"


def _is_pool(line: Line) -> bool:
    return _package(line) in ("psycopg_pool", "sqlalchemy")
