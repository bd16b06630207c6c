"""One process of a race. Imports no models at the top: a spawned process reads this before Django is set up."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

#: for the other processes, which may start slowly
PATIENCE_SECONDS = 600
TRIES = 10
_barrier: Any = None
#: how many requests each process has sent in this race; written by it alone
_sent: Any = None


@dataclass
class Lap:
    """The answers that one process got. Instants are of the machine's monotonic clock, which all processes share."""

    started: float = 0.0
    last_sale: float = 0.0
    ended: float = 0.0
    sold_out: int = 0
    refused: int = 0
    repeats: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    #: request, number, instant of the request and of the answer
    answers: list[tuple[str, str, float, float]] = field(default_factory=list)


def prepare(barrier: Any, sent: Any) -> None:
    """Set Django up in a spawned process."""
    import django

    global _barrier, _sent
    _barrier, _sent = barrier, sent
    django.setup()


def run(name: str, run_id: str, index: int, processes: int, requests: int) -> Lap:
    """Send `requests` requests by strategy `name`, in all processes at once; store every answer as a Sale."""
    from django.db import connection

    from demo_project.serials.models import Sale
    from demo_project.serials.strategies import STRATEGIES
    from jobqueue.db.retry import retries

    strategy = STRATEGIES[name]
    connection.ensure_connection()
    lap, before = Lap(), Counter(retries)
    _barrier.wait(PATIENCE_SECONDS)
    lap.started = lap.last_sale = time.monotonic()
    for request_id, repeated in _requests(run_id, index, processes, requests, strategy.repeatable):
        lap.repeats += repeated
        _ask(strategy.sell, request_id, lap)
        _sent[index] += not repeated
    lap.ended = time.monotonic()
    lap.errors += Counter(retries) - before
    Sale.objects.bulk_create(
        [Sale(strategy=name, request_id=r, serial_id=serial, process=index) for r, serial, _, _ in lap.answers],
        batch_size=500,
    )
    return lap


def _requests(run_id: str, index: int, processes: int, requests: int, repeat: bool) -> Iterator[tuple[str, bool]]:
    for number in range(requests):
        yield f"{run_id}-{index}-{number}", False
        if repeat and number % 10 == 0:
            # A retry after a lost answer ...
            yield f"{run_id}-{index}-{number}", True
        if repeat and number % 10 == 5:
            # ... and a double click that reaches another process at about the same time.
            yield f"{run_id}-{(index + 1) % processes}-{number}", True


def _ask(sell: Callable[[str], str | None], request_id: str, lap: Lap) -> None:
    from django.db import OperationalError

    from demo_project.serials.strategies import Refused

    asked = time.monotonic()
    for _ in range(TRIES):
        try:
            serial = sell(request_id)
        except OperationalError as error:
            lap.errors[str(error.args[0])] += 1
            continue
        except Refused:
            lap.refused += 1
            return
        if serial is None:
            lap.sold_out += 1
        else:
            lap.last_sale = time.monotonic()
            lap.answers.append((request_id, serial, asked, lap.last_sale))
        return
    lap.refused += 1
