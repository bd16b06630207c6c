"""What happened to the job table, written by the database itself: triggers, not the product's own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

from django.db import connection

from tests.settings import VENDOR

TABLE = "audit_edges"


def start() -> None:
    """Record every change of a job's status from now on. Rolled-back changes vanish with their transaction."""
    stop()
    key = {"postgres": "bigserial PRIMARY KEY", "sqlite": "integer PRIMARY KEY AUTOINCREMENT"}
    column = key.get(VENDOR, "bigint AUTO_INCREMENT PRIMARY KEY")
    run(f"CREATE TABLE {TABLE} (seq {column}, job_id bigint, old_status int, new_status int, fence bigint)")
    body = (
        f"INSERT INTO {TABLE}(job_id, old_status, new_status, fence) VALUES (NEW.id, OLD.status, NEW.status, NEW.fence)"
    )
    if VENDOR == "postgres":
        run(f"CREATE FUNCTION audit_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NULL; END $$")
        run(
            "CREATE TRIGGER audit_job AFTER UPDATE ON job_queue FOR EACH ROW "
            "WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION audit_job()"
        )
    elif VENDOR == "sqlite":
        run(f"CREATE TRIGGER audit_job AFTER UPDATE ON job_queue WHEN OLD.status <> NEW.status BEGIN {body}; END")
    else:
        run(
            f"CREATE TRIGGER audit_job AFTER UPDATE ON job_queue FOR EACH ROW "
            f"IF OLD.status <> NEW.status THEN {body}; END IF"
        )


def stop() -> None:
    """Remove triggers and records."""
    if VENDOR == "postgres":
        run("DROP TRIGGER IF EXISTS audit_job ON job_queue")
        run("DROP FUNCTION IF EXISTS audit_job()")
    else:
        run("DROP TRIGGER IF EXISTS audit_job")
    run(f"DROP TABLE IF EXISTS {TABLE}")


def edges() -> list[tuple[int, int, int, int]]:
    """(job_id, old_status, new_status, fence) in the order of each job's changes."""
    return run(f"SELECT job_id, old_status, new_status, fence FROM {TABLE} ORDER BY job_id, seq")


def violations() -> list[str]:
    """What must never happen, of all jobs so far."""
    return illegal(edges())


def illegal(found: Iterable[tuple[int, int, int, int]], retried: Container[int] = ()) -> list[str]:
    """An edge that is not in the state machine, a second end, a broken chain, a fence that comes again.

    `retried`: jobs that an operator may have retried or discarded: these end once more.
    """
    allowed = {(0, 1), (1, 2), (1, 0), (1, 3), (1, 4), (0, 4), (3, 4), (3, 0), (4, 0)}
    problems, ends, last = [], Counter(), {}
    for job_id, old, new, fence in found:
        if old in (3, 4) and job_id in retried:
            ends[job_id] = 0
        if (old, new) not in allowed:
            problems.append(f"job {job_id}: {old} -> {new}")
        if last.get(job_id, (old, 0))[0] != old:
            problems.append(f"job {job_id}: was {last[job_id][0]}, then changed from {old}")
        if (old, new) == (0, 1) and fence <= last.get(job_id, (0, 0))[1]:
            problems.append(f"job {job_id}: fence {fence} came again")
        ends[job_id] += new in (2, 3, 4)
        last[job_id] = (new, fence)
    return problems + [f"job {job_id}: ended {n} times" for job_id, n in ends.items() if n > 1]


def run(sql: str) -> list:
    """One statement."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []
