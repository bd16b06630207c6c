"""Imports point down, and one package writes job state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "jobqueue"

#: level of each module or package below jobqueue/; a file may import its own level and lower ones
LEVELS = {
    0: ["__init__", "exceptions", "backoff", "names", "payload", "failures", "durations", "conf", "signals", "compat"],
    1: ["db"],
    2: ["models"],
    3: ["allocate", "allocation_arguments", "allocation_records", "bulk", "candidates", "context", "counter",
        "dedupe", "doorbell", "elsewhere", "fencing", "handlers", "heads", "id_range", "idempotency", "indexes",
        "insertion", "inspect", "job_log", "job_options", "key_wait", "lanes", "locks", "ordering_keys", "outbox",
        "outside", "producer",
        "progress", "queues", "redis_client", "registry", "results", "starving", "task_context", "tasks",
        "transactions", "transitions", "unrunnable", "upcasting", "workers"],
    4: ["maintenance", "worker"],
    5: ["admin", "apps", "backends", "checks", "cli", "log_events", "management", "migrations",
        "testing"],
}  # fmt: skip
LEVEL = {name: level for level, names in LEVELS.items() for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))

#: columns that only the transitions may write
OWNED = {
    "status", "locked_by", "lock_token", "locked_at", "lock_until", "attempts", "fence", "finished_at", "epoch",
    "crashes", "gate", "cancel_requested_at", "last_error", "cause", "max_attempts",
}  # fmt: skip
WRITERS = {"update", "bulk_update", "create", "bulk_create", "get_or_create", "update_or_create"}
#: writers that take the columns as a dict
BY_DICT = {"update_by_key", "prepare_change", "prepare_change_by_key", "prepare_change_returning", "_update"}
#: they write what their callers name, of rows that are the caller's
PASS_ON = {
    "bulk.py",
    "allocate.py",
    "idempotency/records.py",
    "db/base.py",
    "db/mysql.py",
    "db/mariadb.py",
    "db/prepared.py",
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
            # Entries and regions are places of a worker's board.
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "entry", "region")
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


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "jobqueue":
                yield from ((f"jobqueue.{alias.name}", node.lineno) for alias in node.names)
            yield node.module, node.lineno
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)


def test_every_room_has_a_level():
    assert {room(path) for path in FILES} <= set(LEVEL), "a new module needs its level in LEVELS"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own = room(path)
    for name, line in imports(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] != "jobqueue" or len(parts) < 2 or parts[1] not in LEVEL:
            continue
        if own == "__init__" or LEVEL[parts[1]] <= LEVEL[own] or parts[1] == own:
            continue
        pytest.fail(f"{path.relative_to(ROOT)}:{line} (level {LEVEL[own]}) imports {name} (level {LEVEL[parts[1]]})")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_transitions_and_producer_write_job_state(path):
    if room(path) in ("transitions", "migrations", "workers", "locks", "fencing", "outbox", "testing"):
        # Workers to outbox own a table each, or write the host's; testing writes what time and others would have.
        return
    passes_on = str(path.relative_to(PACKAGE)) in PASS_ON
    for line, columns in written(ast.parse(path.read_text())):
        found = columns - ({UNSEEN} if passes_on else set())
        assert not found, f"{path.relative_to(ROOT)}:{line} writes {found}"


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_db_asks_which_vendor_it_is(path):
    if room(path) == "db":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare) and any(
            isinstance(n, ast.Attribute) and n.attr == "vendor" for n in ast.walk(node)
        ):
            pytest.fail(f"{path.relative_to(ROOT)}:{node.lineno} compares a vendor name")
        if isinstance(node, ast.Attribute) and node.attr == "mysql_is_mariadb":
            pytest.fail(f"{path.relative_to(ROOT)}:{node.lineno} asks for MariaDB")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_driver_and_no_pickle_is_imported(path):
    banned = {"MySQLdb", "pymysql", "psycopg", "psycopg2", "sqlite3", "pickle", "marshal", "shelve", "yaml"}
    found = {name.split(".")[0] for name, _ in imports(ast.parse(path.read_text()))} & banned
    assert not found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    if room(path) == "migrations":
        return
    text = path.read_text()
    assert text.count("\n") < 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 40, f"{node.name} has {lines} lines"


def test_no_submodule_bears_the_name_of_a_public_function():
    import jobqueue
    import jobqueue.locks
    import jobqueue.transitions

    for package in (jobqueue, jobqueue.locks, jobqueue.transitions):
        folder = Path(str(package.__file__)).parent
        modules = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        assert not modules & set(package.__all__)


def test_the_public_names_can_be_imported_before_apps_are_ready():
    import subprocess
    import sys

    code = "from jobqueue import current_job, enqueue, enqueue_many, handler, task; print(current_job())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr
