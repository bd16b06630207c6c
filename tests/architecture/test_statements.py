"""Statements of features stand in their rooms, and what depends on the database stands in db."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps

from tests.architecture.test_layers import none_of, parsed

PACKAGE = Path(__file__).parents[2] / "jobqueue"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "migrations" not in path.parts]
IN_DB = [path for path in FILES if path.is_relative_to(PACKAGE / "db")]

#: SQL templates of features: they ask the dialect for what differs between databases
TEMPLATES = {
    "allocate.py",
    "idempotency/records.py",
    "locks/lease.py",
    "locks/mutex_rows.py",
    "producer/dedupe.py",
    "retention/windows.py",
    # Of tables of other packages, which have no models here.
    "schedules/importing.py",
}

MODELS = list(apps.get_app_config("jobqueue").get_models())
COLUMNS = {str(field.column) for model in MODELS for field in model._meta.concrete_fields}
#: names of ours that nothing else has
OWN = {column for column in COLUMNS if "_" in column}
OWN |= {model._meta.db_table for model in MODELS}
OWN |= {one.name for model in MODELS for one in [*model._meta.indexes, *model._meta.constraints]}
#: columns of ours that are also words of SQL or of the servers' own views; every key that db makes is called id
COMMON = {"changed", "id", "key", "name", "pid", "epoch", "progress", "state", "mode"}

#: columns that an error message of db names because they are arguments of public functions too
ARGUMENTS = {"dedupe_key", "request_id"}

_STATEMENT = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|REPLACE INTO|TRUNCATE|KILL)\s")
_SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WHERE|FROM|SET|JOIN|ORDER BY|VALUES|RETURNING|CONFLICT)\b")


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that is no docstring."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def owned(text: str) -> set[str]:
    """The names of ours in a text, as far as they can be told from other words."""
    words = set(re.findall(r"\w+", text))
    return (words & OWN) | (words & (COLUMNS - COMMON) if _SQL.search(text) else set())


def test_db_names_no_table_and_no_column_of_ours():
    """A statement of a feature belongs to its room, as a template that asks the dialect."""

    def offenders():
        for path in IN_DB:
            allowed = ARGUMENTS if name(path) == "db/retry.py" else set()
            for line, text in texts(parsed(path)):
                yield from (f"{name(path)}:{line} names {word}" for word in owned(text) - allowed)

    none_of(offenders())


def test_there_are_statements_outside_db_in_templates_only():
    def offenders():
        for path in sorted(set(FILES) - set(IN_DB)):
            found = [(line, text) for line, text in texts(parsed(path)) if _STATEMENT.match(text)]
            if name(path) in TEMPLATES:
                if not found:
                    yield f"{name(path)} has no statement: take it out of TEMPLATES"
            else:
                yield from (f"{name(path)}:{line} has the statement {text}" for line, text in found)

    none_of(offenders())


@pytest.mark.parametrize(
    "text", ["UPDATE job_queue SET", "ix_pick", "lock_token = %s", "SELECT status FROM {table}", "WHERE lane = w.lane"]
)
def test_a_name_of_ours_is_seen(text):
    assert owned(text)


@pytest.mark.parametrize("text", ["RETURNING id", "SELECT a.pid FROM pg_stat_activity a", "the status is odd", "key"])
def test_words_of_others_are_not_taken_for_ours(text):
    assert not owned(text)
