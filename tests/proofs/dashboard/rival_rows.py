"""The packages with which the pages are compared: their settings, the SQL that fills their tables, and their pages.

Of a hundred rows 74 were done, 6 failed and 20 wait, in 37 queues and of 400 tasks. In ours 4 of the 74 were canceled.
The ids grow, which is kind to a primary key of UUIDs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

QUEUES, TASKS = 37, 400
_FROM = "FROM proof_numbers p WHERE p.n < COUNT_"
_ERROR = "ValueError: no funds"


@dataclass(frozen=True)
class Rival:
    """A package. `statements` gives the INSERTs of a chunk for a dialect, in the table of numbers `p`."""

    app: str
    label: str
    statements: Callable[[Any], list[str]]
    pages: dict[str, str]  # what it shows -> its address
    settings: dict[str, Any] = field(default_factory=dict)


def _insert(table: str, columns: dict[str, str], where: str = "") -> str:
    from django.db import connection

    # MySQL reserves some of them.
    names, values = ", ".join(map(connection.ops.quote_name, columns)), ", ".join(columns.values())
    return f"INSERT INTO {table} ({names}) SELECT {values} {_FROM}{f' AND {where}' if where else ''}"


def _common(d: Any) -> dict[str, str]:
    return {
        "queue": d.join("'crowd'", d.text(f"({d.n} % {QUEUES})")),
        "task": d.join("'crowd.tasks.work'", d.text(f"({d.n} % {TASKS})")),
    }


def _state(d: Any, done: str, failed: str, waits: str) -> str:
    part = f"({d.n} % 100)"
    return f"CASE WHEN {part} < 20 THEN {waits} WHEN {part} < 26 THEN {failed} ELSE {done} END"


def _tasks_db(d: Any) -> list[str]:
    common = _common(d)
    return [
        _insert("django_tasks_database_dbtaskresult", {
            "id": d.uid, "status": _state(d, "'SUCCESSFUL'", "'FAILED'", "'READY'"), "enqueued_at": d.at,
            "started_at": _state(d, d.at, d.at, "NULL"), "finished_at": _state(d, d.at, d.at, "NULL"),
            "args_kwargs": "'{\"args\": [], \"kwargs\": {}}'", "priority": "0", "task_path": common["task"],
            "worker_ids": "'[]'", "queue_name": common["queue"], "backend_name": "'default'", "run_after": d.at,
            "exception_class_path": _state(d, "''", "'builtins.ValueError'", "''"),
            "traceback": _state(d, "''", f"'{_ERROR}'", "''"),
        }),
    ]  # fmt: skip


def _ox(d: Any) -> list[str]:
    common = _common(d)
    return [
        _insert("django_ox_oxtask", {
            "id": d.uid, "task_path": common["task"], "args": "'[]'", "kwargs": "'{}'", "queue_name": common["queue"],
            "priority": "0", "takes_context": "FALSE", "backend_name": "'default'",
            "status": _state(d, "'SUCCESSFUL'", "'FAILED'", "'READY'"), "attempts": _state(d, "1", "1", "0"),
            "max_attempts": "3", "errors": "'[]'", "worker_ids": "'[]'", "enqueued_at": d.at,
            "finished_at": _state(d, d.at, d.at, "NULL"), "lease_epoch": "0",
        }),
    ]  # fmt: skip


def _dj_queue(d: Any) -> list[str]:
    common, part = _common(d), f"({d.n} % 100)"
    return [
        _insert("dj_queue_jobs", {
            "id": d.uid, "task_path": common["task"], "queue_name": common["queue"], "priority": "0",
            "payload": "'{}'", "backend_alias": "'default'", "finished_at": _state(d, d.at, "NULL", "NULL"),
            "created_at": d.at, "updated_at": d.at,
        }),
        _insert("dj_queue_ready_executions", {
            "job_id": d.uid, "backend_alias": "'default'", "queue_name": common["queue"], "priority": "0",
            "created_at": d.at,
        }, f"{part} < 20"),
        _insert("dj_queue_failed_executions", {
            "job_id": d.uid, "exception_class": "'ValueError'", "message": "'no funds'", "traceback": f"'{_ERROR}'",
            "created_at": d.at,
        }, f"{part} BETWEEN 20 AND 25"),
    ]  # fmt: skip


def _q2(d: Any) -> list[str]:
    from django.db import connection
    from django_q.models import Task
    from django_q.signing import SignedPackage

    common, part = _common(d), f"({d.n} % 100)"
    pickled = {value: Task._meta.get_field("result").get_db_prep_value(value, connection) for value in ("", _ERROR)}
    task = {"id": "0" * 32, "name": "waits", "func": "crowd.tasks.work1", "args": (), "kwargs": {}}
    waits = SignedPackage.dumps(task)
    return [
        _insert("django_q_task", {
            "id": _hexadecimal(d), "name": common["task"], "func": common["task"], "started": d.at, "stopped": d.at,
            "success": _state(d, "TRUE", "FALSE", "TRUE"), "attempt_count": "1", "cluster": common["queue"],
            "result": _state(d, f"'{pickled['']}'", f"'{pickled[_ERROR]}'", "NULL"),
        }, f"{part} >= 20"),
        _insert("django_q_ormq", {"key": common["queue"], "payload": f"'{waits}'", "lock": d.at}, f"{part} < 20"),
    ]  # fmt: skip


def _hexadecimal(d: Any) -> str:
    """An id of 32 characters, also where an id is a UUID of the server."""
    return f"REPLACE(CAST({d.uid} AS TEXT), '-', '')" if "::uuid" in d.uid else str(d.uid)


RIVALS = {
    "django-tasks-db": Rival("django_tasks_db", "django_tasks_database", _tasks_db, {
        "list of jobs": "/admin/django_tasks_database/dbtaskresult/",
        "failed jobs": "/admin/django_tasks_database/dbtaskresult/?status__exact=FAILED",
        "page of a job": "/admin/django_tasks_database/dbtaskresult/{django_tasks_database_dbtaskresult.id}/change/",
    }, {"TASKS": {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}}),
    "django-q2": Rival("django_q", "django_q", _q2, {
        "list of jobs": "/admin/django_q/success/",
        "failed jobs": "/admin/django_q/failure/",
        "jobs that wait": "/admin/django_q/ormq/",
        "page of a job": "/admin/django_q/success/{django_q_task.id}/change/",
    }, {"Q_CLUSTER": {"orm": "default", "timeout": 60, "retry": 120}}),
    "django-ox": Rival("django_ox", "django_ox", _ox, {
        "overview": "/admin/django_ox/oxtask/overview/",
        "list of jobs": "/admin/django_ox/oxtask/",
        "failed jobs": "/admin/django_ox/oxtask/?status__exact=FAILED",
        "page of a job": "/admin/django_ox/oxtask/{django_ox_oxtask.id}/change/",
    }, {"TASKS": {"default": {"BACKEND": "django_ox.backend.OxBackend"}}}),
    "dj-queue": Rival("dj_queue", "dj_queue", _dj_queue, {
        "overview": "/admin/dj_queue/dashboard/",
        "list of jobs": "/admin/dj_queue/job/",
        "failed jobs": "/admin/dj_queue/failedexecution/",
        "page of a job": "/admin/dj_queue/job/{dj_queue_jobs.id}/change/",
    }, {"TASKS": {"default": {"BACKEND": "dj_queue.backend.DjQueueBackend", "QUEUES": [], "OPTIONS": {}}}}),
}  # fmt: skip
