"""Imports point down, and one package writes job state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.house import circles, graph, imports, modules

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "jobqueue"

#: from the bottom up: a module may import its own room and those above it in this list; the longest name counts
ROOMS = [
    "exceptions", "base", "failures",
    "backoff", "conf", "masking", "signals", "requested", "otel", "middleware",
    "db", "models",
    "wakeup", "ordering", "gates", "producer", "grouping",
    "transitions.leases", "transitions.dependants", "transitions.verb", "transitions.claiming", "transitions",
    "context", "tasks", "lockstats", "stats", "locks", "idempotency", "inspect", "schedules", "groups",
    "outbox.destinations", "outbox",
    "log_format", "retention", "runs", "dead_letters", "bulk_verbs", "maintenance", "alarms", "checks", "metrics",
    "worker.shared", "flow", "explain", "doctor", "worker.run", "worker.child", "worker.monitor", "worker",
    "allocate", "bulk", "counter", "fencing", "transactions", "backends",
    "admin.page", "admin.dead_letters", "admin.jobs", "admin.audit", "admin.queues", "admin.schedules",
    "admin.groups", "admin.overview", "admin.metrics", "admin", "templatetags",
    "cli", "management", "testing", "apps", "migrations",
]  # fmt: skip
HEIGHT = {name: height for height, name in enumerate(ROOMS)}
FILES = sorted(PACKAGE.rglob("*.py"))

#: columns that only the transitions may write
OWNED = {
    "status", "locked_by", "lock_token", "locked_at", "lock_until", "attempts", "fence", "finished_at", "epoch",
    "crashes", "gate", "cancel_requested_at", "last_error", "cause", "fingerprint", "max_attempts",
}  # fmt: skip
WRITERS = {"update", "bulk_update", "create", "bulk_create", "get_or_create", "update_or_create"}
#: writers that take the columns as a dict
BY_DICT = {"update_by_key", "prepare_change", "prepare_change_by_key", "prepare_change_returning", "_update"}
#: they write what their callers name, of rows that are the caller's
PASS_ON = {
    "bulk.py",
    "allocate.py",
    "idempotency/records.py",
    "db/statements.py",
    "db/locks.py",
    "db/prepared.py",
    "db/upsert.py",
    "db/mysql/statements.py",
    "db/mysql/locks.py",
    "db/mariadb/locks.py",
}
UNSEEN = "columns that cannot be seen here"


def named(keys: Iterator[ast.expr | None]) -> set[str]:
    """Which owned columns these keys of a dict may be."""
    return {
        key.value if isinstance(key, ast.Constant) else UNSEEN
        for key in keys
        if not isinstance(key, ast.Constant) or key.value in OWNED
    }


def written(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """(line, owned columns) of each call and assignment in `tree` that may write job state."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in OWNED:
            # Slots are places of a worker's scoreboard.
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "lease_slot", "slot")
            yield node.lineno, set() if own else {node.attr}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.replace("`", "").replace('"', "").lower().split()
            raw = any(words[i : i + 2] == ["update", "job_queue"] for i in range(len(words)))
            yield node.lineno, {"job_queue by SQL"} if raw else set()
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in WRITERS and isinstance(node.func, ast.Attribute):
            yield (
                node.lineno,
                {UNSEEN if word.arg is None else word.arg for word in node.keywords if word.arg in {None, *OWNED}},
            )
        elif name in BY_DICT and len(node.args) > 1:
            changes = node.args[1]
            yield node.lineno, named(iter(changes.keys)) if isinstance(changes, ast.Dict) else {UNSEEN}


def place(module: str) -> str | None:
    """The room of a dotted name below jobqueue."""
    while module and module not in HEIGHT:
        module = module.rpartition(".")[0]
    return module or None


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, made once for all rules."""
    return ast.parse(path.read_text())


def none_of(offenders: Iterator[str]) -> None:
    """Fail with all offenders against a rule, a line each."""
    found = list(offenders)
    assert not found, "\n".join([f"{len(found)} offenders:", *found])


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def test_every_module_has_a_room():
    lost = [name for path in FILES if (name := name_of(path)) != "__init__" and place(name) is None]
    assert not lost, "a new room needs its place in ROOMS"
    assert set(ROOMS) - {"migrations"} <= {*modules(PACKAGE), "management"}


def test_a_room_imports_rooms_below_it():
    def offenders():
        for path in FILES:
            own = place(name_of(path))
            for name, line in imports(parsed(path)):
                other = place(name.removeprefix("jobqueue").removeprefix("."))
                if own and other and HEIGHT[other] > HEIGHT[own]:
                    yield f"{path.relative_to(ROOT)}:{line} ({own}) imports {name} ({other}), which is above it"

    none_of(offenders())


def test_no_modules_import_each_other_in_a_circle():
    arrows = graph(PACKAGE)
    assert not circles({module: arrows.get(module, set()) for module in modules(PACKAGE)})


#: Workers to outbox own a table each, or write the host's; testing writes what time and others would have.
WRITERS_OF_THEIR_OWN = {
    "transitions", "ordering", "gates", "grouping", "migrations", "maintenance", "locks", "fencing", "outbox",
    "testing",
}  # fmt: skip


def test_only_transitions_and_producer_write_job_state():
    def offenders():
        for path in FILES:
            if room(path) in WRITERS_OF_THEIR_OWN:
                continue
            passes_on = {UNSEEN} if str(path.relative_to(PACKAGE)) in PASS_ON else set()
            for line, columns in written(parsed(path)):
                if found := columns - passes_on:
                    yield f"{path.relative_to(ROOT)}:{line} writes {found}"

    none_of(offenders())


@pytest.mark.parametrize(
    "code",
    [
        "rows.update(status=1)",
        "rows.update(**changes)",
        "rows.update(payload=1, **{**changes})",
        "Job.objects.create(**columns)",
        "vendor(using).update_by_key(rows, {'status': 1})",
        "vendor(using).update_by_key(rows, changes)",
        "prepare_change(rows, {**changes, 'payload': 1})",
        "job.status = 2",
        "cursor.execute('UPDATE job_queue SET status = 1')",
        'cursor.execute("UPDATE `job_queue` SET status = 1")',
    ],
)
def test_a_write_of_job_state_is_seen_however_it_is_spelled(code):
    assert any(columns for _, columns in written(ast.parse(code)))


@pytest.mark.parametrize("code", ["known.update(more)", "rows.update(payload=1)", "self.status = 1", "x = job.status"])
def test_what_writes_no_job_state_is_not_taken_for_it(code):
    assert not any(columns for _, columns in written(ast.parse(code)))


#: the packages of the databases; MariaDB's builds on that of MySQL
VENDORS = sorted(path.parent.name for path in (PACKAGE / "db").glob("*/features.py"))
MODULES = {"__init__", "errors", "features", "statements", "locks", "diagnostics"}


def test_only_the_seam_asks_which_vendor_it_is():
    """Another database is a package below db/ and its line in db/__init__.py."""

    def offenders():
        for path in FILES:
            if path == PACKAGE / "db" / "__init__.py" or path.parent.name in VENDORS:
                continue
            for name, line in imports(parsed(path)):
                if any(name.startswith(f"jobqueue.db.{vendor}.") for vendor in VENDORS):
                    yield f"{path.relative_to(ROOT)}:{line} imports {name}"
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.FunctionDef) and node.name.removeprefix("as_") in {*VENDORS, "oracle"}:
                    yield f"{path.relative_to(ROOT)}:{node.lineno} writes SQL for one vendor"
                if isinstance(node, ast.Compare) and any(
                    isinstance(n, ast.Attribute) and n.attr == "vendor" for n in ast.walk(node)
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno} compares a vendor name"
                if isinstance(node, ast.Attribute) and node.attr == "mysql_is_mariadb":
                    yield f"{path.relative_to(ROOT)}:{node.lineno} asks for MariaDB"

    none_of(offenders())


def test_each_database_has_the_same_modules():
    def offenders():
        for vendor in VENDORS:
            found = {path.stem for path in (PACKAGE / "db" / vendor).glob("*.py")}
            # MariaDB has the numbers of MySQL's errors.
            missing = MODULES - found - ({"errors"} if vendor == "mariadb" else set())
            yield from (f"db/{vendor}/{name}.py" for name in sorted(missing | (found - MODULES)))

    none_of(offenders())


def test_no_driver_and_no_pickle_is_imported():
    banned = {"MySQLdb", "pymysql", "psycopg", "psycopg2", "sqlite3", "pickle", "marshal", "shelve", "yaml"}

    def offenders():
        for path in FILES:
            found = set()
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.ImportFrom):
                    found.add((node.module or "").split(".")[0])
                elif isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
            if found & banned:
                yield f"{path.relative_to(ROOT)} imports {', '.join(sorted(found & banned))}"

    none_of(offenders())


#: they send what is told at once, as nothing was written: a refusal, a try that is repeated, and a settled run
SENDS_AT_ONCE = {"db.callers_transaction", "db.retry", "transitions.leases", "worker.child.outcomes"}


def test_signals_about_writes_wait_for_the_commit():
    def offenders():
        for path in FILES:
            if name_of(path) in SENDS_AT_ONCE:
                continue
            for node in ast.walk(parsed(path)):
                from_signals = isinstance(node, ast.ImportFrom) and node.module == "jobqueue.signals"
                if from_signals and "send" in {alias.name for alias in node.names}:
                    yield f"{path.relative_to(ROOT)}:{node.lineno} imports send, and not send_after_commit"

    none_of(offenders())


def test_files_and_functions_stay_small():
    def offenders():
        for path in FILES:
            if room(path) == "migrations":
                continue
            if (lines := path.read_text().count("\n")) > 500:
                yield f"{path.relative_to(ROOT)} has {lines} lines"
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines > 40:
                        yield f"{path.relative_to(ROOT)}: {node.name}() has {lines} lines"

    none_of(offenders())


def test_no_submodule_bears_the_name_of_a_public_function():
    import jobqueue
    import jobqueue.explain
    import jobqueue.flow
    import jobqueue.locks
    import jobqueue.transitions

    for package in (jobqueue, jobqueue.explain, jobqueue.flow, jobqueue.locks, jobqueue.transitions):
        folder = Path(str(package.__file__)).parent
        modules = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        assert not modules & set(package.__all__)


def test_the_public_names_can_be_imported_before_apps_are_ready():
    import subprocess
    import sys

    import jobqueue

    code = f"from jobqueue import {', '.join(jobqueue.__all__)}; print(current_job())"
    # What needs no app can be used in settings and in conftest.py.
    code += "; from jobqueue.testing import inject, travel"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr
