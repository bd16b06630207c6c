"""The host project that the pages' examples talk about: an app `orders` with one model."""

from __future__ import annotations

import re
import sys
import types
from contextlib import contextmanager
from types import ModuleType

from django.db import connection, models

from jobqueue.conf import known_tasks
from jobqueue.outbox.destinations import local
from jobqueue.schedules import declaring
from jobqueue.tasks import registry
from tests.docs.markdown import Piece
from tests.settings import VENDOR


class Order(models.Model):
    """An order in somebody's shop."""

    customer = models.CharField(max_length=100)
    paid = models.BooleanField(default=False)
    receipt_sent = models.BooleanField(default=False)

    class Meta:
        app_label = "orders"

    def __str__(self):
        return f"order {self.pk}"


@contextmanager
def project():
    """The modules orders and orders.models for the time of one page; its tasks and handlers are forgotten after."""
    before = set(sys.modules)
    # A page's project knows nothing of the handlers that other tests have registered.
    known = (
        known_tasks._tasks,
        known_tasks._specs,
        known_tasks._having,
        registry._handlers,
        local._subscribers,
        declaring._declared,
    )
    kept = [dict(names) for names in known]
    for names in known:
        names.clear()
    make_module("orders")
    make_module("orders.models").Order = Order
    try:
        with table():
            yield
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "orders":
                del sys.modules[name]
        for names, old in zip(known, kept, strict=True):
            names.clear()
            names.update(old)


@contextmanager
def table():
    """The table of Order for the length of the block."""
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Order)


def make_module(name: str) -> ModuleType:
    """An empty module that can be imported by `name`."""
    module = types.ModuleType(name)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def work() -> list[str]:
    """Run every due job as a worker would, without its processes; how each run ended."""
    from jobqueue.transitions import claim
    from jobqueue.transitions.claiming.candidates import queue_names
    from jobqueue.worker.child.outcomes import settle
    from tests.factories import run_lease

    ended = []
    for queue in list(queue_names(using="default")):
        for lease in claim(queue, 100, worker="docs"):
            outcome = run_lease(lease)
            ended.append(outcome.ending.value)
            assert not settle([outcome], types.SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0))
    return ended


def sql(text: str, values: dict) -> list:
    """Run the statements of a block; `:name` is a parameter. The columns of a row that is read become parameters."""
    rows: list = []
    for statement in statements(text):
        names: list[str] = []

        def mark(match: re.Match, names: list[str] = names) -> str:
            names.append(match[1])
            return "%s"

        bound = re.sub(r"(?<![:\w']):([a-z_]+)\b", mark, statement.replace("%", "%%"))
        with connection.cursor() as cursor:
            cursor.execute(bound, [values[name] for name in names])
            if cursor.description:
                rows = cursor.fetchall()
                if rows:
                    values.update(zip([column[0] for column in cursor.description], rows[0], strict=True))
            values["changed"] = cursor.rowcount
    return rows


def statements(text: str) -> list[str]:
    """A block without comments, cut at the semicolons that end a line."""
    bare = re.sub(r"--.*$", "", text, flags=re.MULTILINE)
    return [part.strip() for part in re.split(r";\s*(?:\n|$)", bare) if part.strip()]


def runs_here(piece: Piece | None) -> bool:
    """Whether an `only` comment lets the next block run on the database under test."""
    return piece is None or VENDOR in piece.text.split()
