"""One process of a race. Imports no models at the top: a spawned process reads this before Django is set up."""

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

PATIENCE_SECONDS = 120
#: seconds after which all processes move on to a size without offers
ROUND_SECONDS = 0.05
PRICES = (90, 110)
_barrier: Any = None


@dataclass
class Lap:
    """The counts of one process."""

    commits: int = 0
    refused: int = 0
    checks: int = 0
    seconds: float = 0.0
    #: sizes in which a bid stood above an ask
    crossed: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)


def prepare(barrier: Any) -> None:
    """Set Django up in a spawned process."""
    import warnings

    import django

    global _barrier
    _barrier = barrier
    # With DEBUG this would warn about the Redis lock, which is acquired outside the transaction anyway.
    warnings.simplefilter("ignore", RuntimeWarning)
    django.setup()


def run(name: str, product: str, index: int, seconds: float) -> Lap:
    """Trade for `seconds` under strategy `name`, in all processes at once; check the rule after every commit."""
    from django.db import OperationalError, connection

    from demo_project.auction import rules
    from demo_project.auction.strategies import STRATEGIES
    from jobqueue.db.retry import retries

    guard, trader = STRATEGIES[name].guard, _Trader(product, index)
    connection.ensure_connection()
    lap, before = Lap(), Counter(retries)
    _barrier.wait(PATIENCE_SECONDS)
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        # All processes of the machine share this clock.
        size = str(int(time.monotonic() / ROUND_SECONDS))
        try:
            guard(product, size, trader.choose(size))
        except rules.Refused:
            lap.refused += 1
            continue
        except OperationalError as error:
            lap.errors[str(error.args[0])[:40]] += 1
            continue
        lap.commits += 1
        lap.checks += 1
        if rules.is_crossed(product, size):
            lap.crossed.add(size)
    lap.seconds = time.monotonic() - begun
    lap.errors += Counter(retries) - before
    return lap


class _Trader:
    """A customer who makes random offers."""

    def __init__(self, product: str, index: int) -> None:
        self.product, self.name = product, f"trader {index}"
        self.random = Random(f"{product} {index}")
        self.mine: Any = None

    def choose(self, size: str) -> Any:
        """A function that makes the next move."""
        from demo_project.auction import rules
        from demo_project.auction.models import Offer

        wish = self.random.random()
        if wish < 0.7:
            rule = rules.bid if wish < 0.35 else rules.ask
            price = self.random.randint(*PRICES)
            return lambda: self._remember(rule(self.product, size, price, self.name, self._due()))
        if wish < 0.95:
            side, rule = (Offer.Side.ASK, rules.buy_now) if wish < 0.825 else (Offer.Side.BID, rules.sell_now)
            seen = rules.best(self.product, size, side)
            return (lambda: rule(seen, self.name)) if seen else _nothing_to_see
        mine = self.mine
        return (lambda: rules.cancel(mine, self.name)) if mine and mine.size == size else _nothing_to_see

    def _remember(self, offer: Any) -> None:
        self.mine = offer

    def _due(self) -> datetime:
        from django.utils import timezone

        # Some offers end before the round does.
        return timezone.now() + timedelta(seconds=self.random.choice((0.02, 0.05, 5.0, 5.0)))


def _nothing_to_see() -> None:
    from demo_project.auction.rules import Refused

    raise Refused("there is nothing to take")
