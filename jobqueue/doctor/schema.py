"""Migrations, tables and indexes: what the database really has, as other tools may have dropped some of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Index, Model, UniqueConstraint

from jobqueue.checks import pending_migrations
from jobqueue.db import vendor
from jobqueue.doctor.finding import Finding, Level
from jobqueue.models import Job

#: the migration leaves it out where each UPDATE would add an entry to it
_NOT_COPIED = "ix_lock_expiry"


def grants(account: str, using: str) -> list[str]:
    """The statements that let an account run workers: rights on the rows of all tables, and none on the tables."""
    grant, tables = vendor(using).set_up.grants, sorted(model._meta.db_table for model in _models())
    written = grant(connections[using], account, "SELECT, INSERT, UPDATE, DELETE", tables)
    # Workers refuse to start where a migration was not run.
    return written + grant(connections[using], account, "SELECT", [MigrationRecorder.Migration._meta.db_table])


def migrations(using: str) -> Iterator[Finding]:
    """Check migrations_unapplied."""
    if missing := pending_migrations(using):
        yield Finding(
            Level.ERROR,
            "migrations_unapplied",
            f"Migrations were not run on {using!r}: {', '.join(missing)}. Workers do not start.",
            f"Run: python manage.py migrate --database {using}",
            {"migrations": list(missing)},
        )


def tables(using: str) -> Iterator[Finding]:
    """table_missing, where all migrations were run."""
    present = _present(using)
    missing = sorted({model._meta.db_table for model in _models()} - present)
    if missing:
        yield Finding(
            Level.ERROR,
            "table_missing",
            f"Tables are missing, although the migrations were run: {', '.join(missing)}. Somebody has dropped "
            "them, or this account has no right on them, so that the server does not show them.",
            "Restore them from a backup, or make them again: `manage.py sqlmigrate jobqueue 0001` prints the "
            "statements. docs/howto/deploy.md has the rights.",
            {"tables": list(missing)},
        )


def indexes(using: str) -> Iterator[Finding]:
    """index_missing, index_differs. Names and columns as the server has them."""
    present = _present(using)
    models = {model._meta.db_table: model for model in _models() if model._meta.db_table in present}
    found = vendor(using).set_up.indexes(connections[using], list(models))
    named = {(one.table, one.name): one.columns for one in found}
    unnamed = {(one.table, one.columns) for one in found if not one.name}
    for table, model in models.items():
        for name, columns in _wanted(model).items():
            if name == _NOT_COPIED and vendor(using).copies_updated_rows:
                continue
            real = named.get((table, name))
            if real is None and (table, columns) not in unnamed:
                yield _missing(name, table, columns)
            elif real is not None and real != columns:
                yield _differs(name, table, columns, real)


def _missing(name: str, table: str, columns: tuple[str, ...]) -> Finding:
    return Finding(
        _level(table),
        "index_missing",
        f"The index {name} is missing on {table}, or is hidden from the planner: statements read, and on MySQL and "
        "MariaDB lock, far more rows than they need. Workers do not start without an index of job_queue.",
        "Make it again: `manage.py sqlmigrate jobqueue 0001` prints the statement. If the server has it, but invalid "
        "or hidden, drop it first.",
        {"index": name, "table": table, "columns": list(columns)},
    )


def _differs(name: str, table: str, columns: tuple[str, ...], real: tuple[str, ...]) -> Finding:
    return Finding(
        _level(table),
        "index_differs",
        f"The index {name} on {table} has the columns {', '.join(real)} instead of {', '.join(columns)}: statements "
        "read, and on MySQL and MariaDB lock, far more rows than they need.",
        "Drop it, and make it again: `manage.py sqlmigrate jobqueue 0001` prints the statement.",
        {"index": name, "table": table, "columns": list(columns), "found": list(real)},
    )


def _level(table: str) -> Level:
    return Level.ERROR if table == Job._meta.db_table else Level.WARNING


def _models() -> list[type[Model]]:
    return list(apps.get_app_config("jobqueue").get_models())


def _present(using: str) -> set[str]:
    with connections[using].cursor() as cursor:
        return set(connections[using].introspection.table_names(cursor))


def _wanted(model: type[Model]) -> dict[str, tuple[str, ...]]:
    """The columns of each index and unique constraint of a model, by name."""
    options: Any = model._meta
    made: list[Index | UniqueConstraint] = [*options.indexes]
    made += [one for one in options.constraints if isinstance(one, UniqueConstraint)]
    return {
        str(one.name): tuple(options.get_field(field.removeprefix("-")).column for field in one.fields)
        for one in made
        if one.fields
    }
