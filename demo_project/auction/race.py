"""Race many processes on each strategy, and judge by what they saw and by the rows."""

import multiprocessing
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from django.db import connection
from django.db.models import Count

from demo_project.auction import racer
from demo_project.auction.models import Offer
from demo_project.auction.strategies import STRATEGIES, Strategy, reason_not_to_run
from demo_project.demo.lock_waits import lock_waits, waits_since


@dataclass(frozen=True)
class Shape:
    """The size of a race."""

    processes: int = 8
    seconds: float = 3.0

    @property
    def text(self) -> str:
        """The size in words."""
        return f"{self.processes} processes, {self.seconds:g} s for each strategy"


@dataclass
class Verdict:
    """The result of one strategy. `not_run` is the reason why it did not run, or empty."""

    strategy: str
    safe: bool
    not_run: str = ""
    commits: int = 0
    per_second: float = 0.0
    refused: int = 0
    checks: int = 0
    #: sizes in which a process saw a bid above an ask
    crossed: int = 0
    #: offers that were sold to two customers, or sold and cancelled
    sold_twice: int = 0
    lock_waits: int | None = None
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Whether the rules held whenever a process looked."""
        return not self.crossed and not self.sold_twice

    @property
    def text(self) -> str:
        """The verdict as text."""
        if self.not_run:
            return f"not run: {self.not_run}"
        faults = [
            f"{count} {what}{'s' if count > 1 else ''} {fault}"
            for count, what, fault in ((self.crossed, "market", "crossed"), (self.sold_twice, "offer", "sold twice"))
            if count
        ]
        return "BROKEN: " + ", ".join(faults) if faults else "rules kept"

    def as_json(self) -> dict[str, object]:
        """All values, for --json."""
        return {**asdict(self), "kept": self.kept and not self.not_run, "verdict": self.text}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Verdict":
        """What as_json() was made from."""
        return cls(**{one.name: found[one.name] for one in fields(cls)})


def run(names: Sequence[str], shape: Shape) -> Iterator[Verdict]:
    """Yield one verdict per strategy. The processes are started once, each with its own connection."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(shape.processes)
    with ProcessPoolExecutor(
        shape.processes, mp_context=context, initializer=racer.prepare, initargs=(barrier,)
    ) as pool:
        for name in names:
            strategy = STRATEGIES[name]
            missing = reason_not_to_run(strategy)
            if missing:
                yield Verdict(name, strategy.safe, not_run=missing)
            else:
                with _index(strategy.indexed):
                    yield _race(strategy, shape, pool)


def _race(strategy: Strategy, shape: Shape, pool: ProcessPoolExecutor) -> Verdict:
    Offer.objects.all().delete()
    product = f"shoe {uuid.uuid4().hex[:8]}"
    before = lock_waits()
    # A barrier inside gives each process exactly one of these calls.
    running = [pool.submit(racer.run, strategy.name, product, index, shape.seconds) for index in range(shape.processes)]
    laps = [future.result() for future in running]
    waits = waits_since(before)
    offers = Offer.objects.filter(product=product)
    twice = offers.annotate(trades=Count("trade")).filter(trades__gt=1).count()
    both = offers.filter(cancelled_at__isnull=False, trade__isnull=False).distinct().count()
    commits = sum(lap.commits for lap in laps)
    return Verdict(
        strategy.name,
        strategy.safe,
        commits=commits,
        per_second=commits / max(lap.seconds for lap in laps),
        refused=sum(lap.refused for lap in laps),
        checks=sum(lap.checks for lap in laps),
        crossed=len(set().union(*(lap.crossed for lap in laps))),
        sold_twice=twice + both,
        lock_waits=waits,
        errors=dict(sum((lap.errors for lap in laps), Counter())),
    )


@contextmanager
def _index(wanted: bool) -> Iterator[None]:
    """Drop the index of the table within the block, unless it is wanted."""
    (index,) = Offer._meta.indexes
    if not wanted:
        with connection.schema_editor() as editor:
            editor.remove_index(Offer, index)
    try:
        yield
    finally:
        if not wanted:
            with connection.schema_editor() as editor:
                editor.add_index(Offer, index)
