"""A database that is ready for measuring, and what every measure needs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import workers
from benchmarks.fill import OURS, REFERENCE, empty, fill, make_numbers, refresh
from benchmarks.peers import Peer
from benchmarks.plan import Plan
from benchmarks.reference import Reference, create_table
from benchmarks.target import Target, environment, rows


@dataclass
class Bench:
    """The target with our tables, the reference's table and the installed peers."""

    target: Target
    plan: Plan
    folder: Path
    peers: list[Peer] = field(default_factory=list)
    connection: Any = None

    @property
    def env(self) -> dict[str, str]:
        """The environment of every worker."""
        effects = {"BENCH_EFFECTS": str(self.folder / "effects")}
        return {**environment(self.target), **effects, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"}

    def build(self, target: Target | None = None, alias: str = "default") -> None:
        """Create the database with our tables and the reference's."""
        from django.core.management import call_command
        from django.db import connections

        target = target or self.target
        target.create()
        if alias not in connections.databases:
            name = str(target.path) if target.kind == "sqlite" else target.name
            connections.databases[alias] = {**connections.databases["default"], "NAME": name}
        call_command("migrate", verbosity=0, database=alias)
        make_numbers(target)
        create_table(target)

    def start(self) -> None:
        """Build the database, and open the connection that counts finished jobs."""
        self.build()
        self.connection = self.target.connect()

    def close(self) -> None:
        """Remove the database."""
        from django.db import connections

        connections.close_all()
        if self.connection is not None:
            self.connection.close()
        self.target.drop()

    def reference(self) -> Reference:
        """A reference with a connection of its own."""
        return Reference(self.target)

    def load(
        self, table: str, count: int, *, delayed: int = 0, task: str = "benchmarks.tasks.noop", queue: str = ""
    ) -> None:
        """Empty a table and insert `count` due jobs."""
        empty(self.target, self.connection, table)
        if delayed:
            fill(self.target, self.connection, table, delayed, delayed=True, queue=queue or "bench")
        fill(self.target, self.connection, table, count, task=task, queue=queue or "bench")
        refresh(self.target, self.connection, table)

    def finished(self, table: str) -> Callable[[], int]:
        """A function that counts committed finishes."""
        return self.counting(f"SELECT COUNT(*) FROM {table} WHERE status = 2")

    def counting(self, sql: str) -> Callable[[], int]:
        """A function that runs a counting statement."""
        return lambda: int(rows(self.connection, sql)[0][0])

    def watch(self, table: str, total: int, seconds: float | None = None) -> workers.Watch:
        """A Watch on a table."""
        return workers.Watch(total, seconds or self.plan.drain_seconds, self.finished(table))

    def drain_ours(self, jobs: int, processes: int = 1, *options: str, **load: Any) -> float | None:
        """Jobs a second of our worker."""
        self.load(OURS, jobs, **load)
        with workers.running(workers.runworker(*options, processes=processes), self.env) as started:
            samples = self.watch(OURS, jobs).until_done(started)
        self.check_once()
        return workers.rate(samples, jobs)

    def drain_reference(self, jobs: int, count: int = 1, *options: str, **load: Any) -> float | None:
        """Jobs a second of the reference."""
        self.load(REFERENCE, jobs, **load)
        with workers.running(workers.reference(*options), self.env, count=count) as started:
            samples = self.watch(REFERENCE, jobs).until_done(started)
        return workers.rate(samples, jobs)

    def check_once(self) -> None:
        """Raise if a job of a drain started twice."""
        sql = f"SELECT COUNT(*) FROM {OURS} WHERE status = 2 AND fence <> 1"
        twice = rows(self.connection, sql)[0][0]
        if twice:
            raise AssertionError(f"{twice} jobs were claimed more than once")

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"{time.strftime('%H:%M:%S')} {self.target.kind}: {text}", file=sys.stderr, flush=True)


def alternate(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Run all contestants in turn, forwards and backwards, `rounds` times. Returns their values by round."""
    found: dict[str, list[Any]] = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants)
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(contestants[name]())
    return found
