"""Race many processes on each strategy, then judge by the rows which buyer got which number."""

import multiprocessing
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from django.db.models import Count

from demo_project.demo.lock_waits import lock_waits, waits_since
from demo_project.demo.redis_there import redis_missing
from demo_project.serials import racer
from demo_project.serials.models import Sale, SerialNumber
from demo_project.serials.strategies import STRATEGIES
from jobqueue.models import IdempotencyRecord

LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Shape:
    """The size of a race."""

    numbers: int = 1000
    requests: int = 5000
    processes: int = 8

    @property
    def text(self) -> str:
        """The size in words."""
        return f"{self.numbers} numbers, {self.requests} requests, {self.processes} processes"


@dataclass
class Verdict:
    """The result of one strategy. `not_run` is the reason why it did not run, or empty."""

    strategy: str
    safe: bool
    not_run: str = ""
    handed_out: int = 0
    duplicates: int = 0
    unsold: int = 0
    greedy: int = 0
    overtaken: int = 0
    ordered: bool = False
    refused: int = 0
    repeats: int = 0
    ms_per_number: float = 0.0
    seconds: float = 0.0
    lock_waits: int | None = None
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Whether no number was sold twice, no request got two, and unsold numbers are explained by refused buyers."""
        out_of_turn = self.ordered and self.overtaken
        return not (self.duplicates or self.greedy or out_of_turn or self.unsold > self.refused)

    @property
    def text(self) -> str:
        """The verdict as text."""
        if self.not_run:
            return f"not run: {self.not_run}"
        faults = [
            f"{count} {what}"
            for count, what in (
                (self.duplicates, "sold twice or more"),
                (self.unsold, "left over, buyers were refused" if self.unsold <= self.refused else "never sold"),
                (self.greedy, "requests got two"),
                (self.overtaken if self.ordered else 0, "out of turn"),
            )
            if count
        ]
        return "; ".join(faults) or ("each number once, in order" if self.ordered else "each number once")

    def as_json(self) -> dict[str, object]:
        """All values, for --json."""
        return {**asdict(self), "kept": self.kept and not self.not_run, "verdict": self.text}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Verdict":
        """What as_json() was made from."""
        return cls(**{one.name: found[one.name] for one in fields(cls)})


def run(
    names: Sequence[str],
    shape: Shape,
    *,
    next_shape: Callable[[], Shape] | None = None,
    see: Callable[[int], None] = lambda sent: None,
) -> Iterator[Verdict]:
    """Yield one verdict per strategy. The processes are started once, each with its own connection.

    `next_shape` is asked before each strategy, and may change all but the number of processes. `see` is called now and
    then with the number of requests that were sent.
    """
    missing = redis_missing()
    with _processes(shape.processes) as (pool, sent):
        for name in names:
            strategy = STRATEGIES[name]
            if strategy.needs_redis and missing:
                yield Verdict(name, strategy.safe, not_run=missing)
            else:
                yield _race(name, next_shape() if next_shape else shape, pool, sent, see)


@contextmanager
def _processes(count: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    sent = context.Array("l", count, lock=False)
    with ProcessPoolExecutor(count, mp_context=context, initializer=racer.prepare, initargs=(barrier, sent)) as pool:
        yield pool, sent


def _race(name: str, shape: Shape, pool: ProcessPoolExecutor, sent: Any, see: Callable[[int], None]) -> Verdict:
    _stock(shape.numbers)
    sent_before = sum(sent)
    before = lock_waits()
    run_id = uuid.uuid4().hex[:8]
    shares = [
        shape.requests // shape.processes + (i < shape.requests % shape.processes) for i in range(shape.processes)
    ]
    # A barrier inside gives each process exactly one of these calls.
    running = [
        pool.submit(racer.run, name, run_id, index, shape.processes, share) for index, share in enumerate(shares)
    ]
    while wait(running, LOOK_SECONDS).not_done:
        see(sum(sent) - sent_before)
    laps = [future.result() for future in running]
    waits = waits_since(before)
    verdict = _judge(name, shape, laps)
    verdict.lock_waits = waits
    return verdict


def _stock(numbers: int) -> None:
    """Create new numbers, and delete those of earlier races."""
    Sale.objects.all().delete()
    SerialNumber.objects.all().delete()
    IdempotencyRecord.objects.filter(label__startswith=f"take {SerialNumber._meta.db_table} ").delete()
    SerialNumber.objects.bulk_create([SerialNumber(id=f"SN-{n:06d}") for n in range(1, numbers + 1)], batch_size=200)


def _judge(name: str, shape: Shape, laps: Sequence[racer.Lap]) -> Verdict:
    sales = Sale.objects.filter(strategy=name)
    buyers = sales.order_by().values("serial_id").annotate(buyers=Count("request_id", distinct=True))
    numbers = sales.order_by().values("request_id").annotate(numbers=Count("serial_id", distinct=True))
    handed_out = buyers.count()
    began = min(lap.started for lap in laps)
    selling = max(lap.last_sale for lap in laps) - began
    return Verdict(
        strategy=name,
        safe=STRATEGIES[name].safe,
        handed_out=handed_out,
        duplicates=buyers.filter(buyers__gt=1).count(),
        unsold=max(0, min(shape.numbers, shape.requests) - handed_out),
        greedy=numbers.filter(numbers__gt=1).count(),
        overtaken=_overtaken(laps),
        ordered=STRATEGIES[name].ordered,
        refused=sum(lap.refused for lap in laps),
        repeats=sum(lap.repeats for lap in laps),
        ms_per_number=1000 * selling / max(1, handed_out),
        seconds=max(lap.ended for lap in laps) - began,
        errors=dict(sum((lap.errors for lap in laps), Counter())),
    )


def _overtaken(laps: Sequence[racer.Lap]) -> int:
    """How many buyers got a lower number than a buyer who was answered before they asked."""
    first: dict[str, tuple[str, float, float]] = {}
    for request_id, *sale in sorted((a for lap in laps for a in lap.answers), key=lambda answer: answer[2]):
        # A repeated request must get the number it had.
        first.setdefault(request_id, tuple(sale))
    sales = list(first.values())
    answered = sorted((ended, serial) for serial, _, ended in sales)
    found, highest, position = 0, "", 0
    for serial, asked, _ in sorted(sales, key=lambda sale: sale[1]):
        while position < len(answered) and answered[position][0] < asked:
            highest = max(highest, answered[position][1])
            position += 1
        found += serial < highest
    return found
