"""python tests/architecture/hops.py: how many functions of the package lie between a call and its SQL, as JSON.

Runs each route on a SQLite database of its own, with public names only, so that it can run in the files of any commit.
A hop is a named function of `jobqueue` on the stack of a statement; lambdas, the retry wrapper (db/retry) and the
prepared statements (db/prepared) do not count. The deepest statement of a route counts. Worker routes begin at the turn
of the child's loop and at the turn of the settling thread.

With --statements it prints the statements of each verb instead, and how many rows they read by the server's own count,
on the server of DATABASE_URL if there is one: tests/architecture/statements.py compares those of two commits.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

MANY = 100
WRAPPERS = ("db/retry.py", "db/prepared.py")
CONTROL = re.compile(r"BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SET|PRAGMA", re.IGNORECASE)
#: function and file at which a worker's route begins
LOOP, SETTLER = ("run", "loop.py"), ("_work", "settler.py")


def chain(frame: FrameType | None, package: str) -> list[tuple[str, str]]:
    """(function, file) of the package's named functions on the stack, outermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        name = code.co_name
        if name == "_execute_with_wrappers":
            found = []  # what came after it wraps the statement and is no way to it
        file = code.co_filename.removeprefix(package)
        if file != code.co_filename and not name.startswith("<") and file not in WRAPPERS:
            found.append((name, file))
        frame = frame.f_back
    return found[::-1]


class Tracer:
    """Writes (sql, chain) of every statement of this process and its forks to a file, one JSON list a line."""

    def __init__(self, path: Path, package: str) -> None:
        self.path, self._package = path, package

    def install(self) -> None:
        """Trace every connection that is opened from now on, in any thread or forked process."""
        from django.db.backends.signals import connection_created

        def trace(connection: Any, **_: object) -> None:
            if self._execute not in connection.execute_wrappers:
                connection.execute_wrappers.append(self._execute)

        connection_created.connect(trace, weak=False)

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not CONTROL.match(sql):
            line = json.dumps([sql[:400], chain(sys._getframe(1), self._package)])
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{line}\n".encode())
            os.close(descriptor)
        return execute(sql, params, many, context)

    def statements(self) -> list[tuple[str, list[list[str]]]]:
        """What was traced since the last call."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.path.unlink(missing_ok=True)
        return [tuple(json.loads(line)) for line in lines]


@contextmanager
def project(package_root: Path) -> Iterator[Tracer]:
    """Django with the package of `package_root`, on a new SQLite database."""
    import django
    import environ
    from django.conf import settings

    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.get("DATABASE_URL", f"sqlite:///{folder}/hops.sqlite3")
        database = environ.Env.db_url_config(url)
        if database["ENGINE"].endswith("sqlite3"):
            database |= {"OPTIONS": {"timeout": 20}, "TEST": {"NAME": f"{folder}/test.sqlite3"}}
        backend = {"BACKEND": "jobqueue.backends.JobQueueBackend"}
        apps = ["django.contrib.auth", "django.contrib.contenttypes", "jobqueue"]
        settings.configure(
            DATABASES={"default": database}, TASKS={"default": backend}, INSTALLED_APPS=apps, USE_TZ=True
        )
        django.setup()
        from django.db import connection, connections

        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        connection.close()
        _read_rules_once()
        tracer = Tracer(Path(folder) / "statements", f"{package_root / 'jobqueue'}{os.sep}")
        tracer.install()
        yield tracer
        connections.close_all()
        connection.creation.destroy_test_db(database["NAME"], verbosity=0)


def _read_rules_once() -> None:
    """Pauses and limits are read at most twice a second, by whichever verb comes next; the figures are without that."""
    with suppress(ImportError):
        from jobqueue.gates import rules

        rules.RULES_SECONDS = 3600.0


def _public_routes() -> Iterator[tuple[str, str, Callable[[], object], Callable[[], object]]]:
    """(name, what its statements contain, what comes before, the call)."""
    from django.db import transaction

    from jobqueue import enqueue, handler, task, transitions
    from jobqueue.locks import lease_lock, mutex
    from jobqueue.models import Job
    from jobqueue.outbox import publish

    handler("q")(_consume)
    add = task(_add)
    held: list[transitions.Lease] = []

    def claimed() -> None:
        enqueue("q", None)
        held[:] = transitions.claim("q", worker="w", lease_seconds=60)

    def lapsed() -> None:
        claimed()
        Job.objects.filter(status=Job.Status.PROCESSING).update(lock_until="2001-01-01T00:00:00Z")

    def locked() -> None:
        with lease_lock("k", ttl_seconds=60):
            pass

    def mutual() -> None:
        with transaction.atomic(), mutex("k"):
            pass

    def published() -> None:
        with transaction.atomic():
            publish("t", {})

    def nothing() -> None:
        pass

    yield "enqueue", "INSERT", nothing, lambda: enqueue("q", None)
    yield "task.enqueue", "INSERT", nothing, lambda: add.enqueue(1)
    yield "public claim", "job_queue", lambda: enqueue("q", None), lambda: transitions.claim("q", worker="w")
    yield "public ack", "job_queue", claimed, lambda: transitions.ack(held[0])
    yield "fail", "job_", claimed, lambda: transitions.fail(held[0], error="x")
    yield "heartbeat", "job_queue", claimed, lambda: transitions.heartbeat(held[0], lease_seconds=60)
    yield "reap", "job_", lapsed, transitions.reap
    yield "lease_lock", "job_lock", locked, locked
    yield "publish", "job_outbox", published, published
    yield "mutex", "job_mutex", mutual, mutual


def _batches() -> Iterator[tuple[str, Callable[[], object]]]:
    """(name, call), one after the other: the verbs of many jobs."""
    from jobqueue import enqueue_many, transitions

    held: list[transitions.Lease] = []

    def claim() -> None:
        held[:] = transitions.claim("many", MANY, worker="w")
        assert len(held) == MANY

    yield f"enqueue_many of {MANY}", lambda: enqueue_many("many", range(MANY))
    yield f"claim of {MANY}", claim
    yield f"heartbeat_many of {MANY}", lambda: transitions.heartbeat_many(held, lease_seconds=60)
    yield f"ack_many of {MANY}", lambda: transitions.ack_many(held)


def rows_read() -> int | None:
    """The rows that the server has read for this session, on PostgreSQL for all. None: SQLite does not count them."""
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'")
            return sum(int(value) for _, value in cursor.fetchall())
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables "
                "WHERE starts_with(relname, 'job_')"
            )
            return int(cursor.fetchone()[0])
    return None


def _counted(tracer: Tracer, call: Callable[[], object]) -> tuple[list[str], int | None]:
    """The statements of a call, and the rows that they read. What the count itself reads is subtracted."""
    before = rows_read()
    tracer.statements()
    call()
    sent = [sql for sql, _ in tracer.statements()]
    after, again = rows_read(), rows_read()
    if before is None or after is None or again is None:
        return sent, None
    return sent, after - before - (again - after)


def statements(tracer: Tracer) -> dict[str, tuple[list[str], int | None]]:
    """Verb -> statements and rows read of one call, the second one: the first reads what a process keeps."""
    found = {}
    for _ in range(2):
        for name, _, before, call in _public_routes():
            before()
            found[name] = _counted(tracer, call)
        for name, call in _batches():
            found[name] = _counted(tracer, call)
    return found


def _consume(payload: object) -> None:
    pass


def _add(number: int) -> int:
    return number


def routes(tracer: Tracer) -> dict[str, list[str]]:
    """Route -> the functions between the call and its deepest statement."""
    found = {}
    for name, contains, before, call in _public_routes():
        before()
        tracer.statements()
        call()
        found[name] = _deepest(tracer, contains)
    found |= _worker_routes(tracer)
    return found


def _worker_routes(tracer: Tracer) -> dict[str, list[str]]:
    from django.core.management import call_command
    from django.db import connections

    from jobqueue import enqueue

    for _ in range(3):
        enqueue("q", None)
    connections.close_all()
    tracer.statements()
    call_command("runworker", "q", "--drain", "--processes", "1", "--concurrency", "1", verbosity=0)
    statements = tracer.statements()
    taking = r"UPDATE.*locked_by|SELECT.*payload.*job_queue"
    return {
        "worker's claim": _below(LOOP, statements, taking),
        "worker's ack": _below(SETTLER, statements, r"UPDATE.*job_queue"),
    }


def _deepest(tracer: Tracer, contains: str) -> list[str]:
    found = [functions for sql, functions in tracer.statements() if contains in sql]
    return [name for name, _ in max(found, key=len)]


def _below(start: tuple[str, str], statements: list[tuple[str, list[list[str]]]], pattern: str) -> list[str]:
    found: list[list[str]] = []
    for sql, functions in statements:
        names = [(name, file.rpartition("/")[2]) for name, file in functions]
        if re.search(pattern, sql, re.DOTALL) and start in names:
            found.append([name for name, _ in names[names.index(start) :]])
    return max(found, key=len)


def main(root: Path, show: Callable[[Tracer], object]) -> None:
    """Print the routes, or the statements, of the package below `root`."""
    sys.path.insert(0, str(root))
    import logging

    logging.disable(logging.CRITICAL)
    with project(root) as tracer:
        print(json.dumps(show(tracer)))


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--statements"]
    main(
        Path(words[0]).resolve() if words else Path(__file__).resolve().parents[2],
        statements if "--statements" in sys.argv else routes,
    )
