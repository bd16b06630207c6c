"""The rules of the auction. Each one reads, thinks, and writes: what keeps others out in between is not their business.

No bid above the lowest ask, no ask below the highest bid; equal prices are allowed. Offers that are signed, cancelled
or past their date do not count. A trade takes the best offer at its price, and looks again before it signs.
"""

import time
from datetime import datetime

from django.db.models import Max, Min, Q

from demo_project.auction.models import Offer, Trade
from jobqueue.db.clock import UtcNow

#: what a program does between reading the market and writing to it: fees, limits, other queries
THINK_SECONDS = 0.001


class Refused(Exception):
    """The rules do not allow it now. Nothing was written."""


def market(product: str, size: str) -> tuple[int | None, int | None]:
    """(highest live bid, lowest live ask), at one moment: it is one statement."""
    found = (
        Offer.objects.of(product, size)
        .live()
        .aggregate(high=Max("price", filter=Q(side=Offer.Side.BID)), low=Min("price", filter=Q(side=Offer.Side.ASK)))
    )
    return found["high"], found["low"]


def is_crossed(product: str, size: str) -> bool:
    """Whether the rule is broken: a bid stands above an ask."""
    high, low = market(product, size)
    return high is not None and low is not None and high > low


def bid(product: str, size: str, price: int, owner: str, due_at: datetime) -> Offer:
    """Offer to buy. Refused above the lowest ask: buy that one instead."""
    _, low = market(product, size)
    if low is not None and price > low:
        raise Refused(f"somebody sells for {low}")
    return _offer(product, size, Offer.Side.BID, price, owner, due_at)


def ask(product: str, size: str, price: int, owner: str, due_at: datetime) -> Offer:
    """Offer to sell. Refused below the highest bid: sell to that one instead."""
    high, _ = market(product, size)
    if high is not None and price < high:
        raise Refused(f"somebody pays {high}")
    return _offer(product, size, Offer.Side.ASK, price, owner, due_at)


def buy_now(seen: Offer, taker: str) -> Trade:
    """Accept an ask at its price. Refused if it is not the lowest live one any more."""
    return _trade(seen, taker, best="price")


def sell_now(seen: Offer, taker: str) -> Trade:
    """Accept a bid at its price. Refused if it is not the highest live one any more."""
    return _trade(seen, taker, best="-price")


def best(product: str, size: str, side: str) -> Offer | None:
    """What a customer sees on the page: the best live offer of that side."""
    price = "price" if side == Offer.Side.ASK else "-price"
    return Offer.objects.of(product, size).live().filter(side=side).order_by(price, "id").first()


def cancel(seen: Offer, owner: str) -> None:
    """Take an offer back. Refused to others, and once it is signed, cancelled or past its date."""
    offer = Offer.objects.of(seen.product, seen.size).live().filter(pk=seen.pk, owner=owner).first()
    if offer is None:
        raise Refused("it is not there any more")
    time.sleep(THINK_SECONDS)
    Offer.objects.filter(pk=offer.pk).update(cancelled_at=UtcNow())


def _offer(product: str, size: str, side: str, price: int, owner: str, due_at: datetime) -> Offer:
    time.sleep(THINK_SECONDS)
    return Offer.objects.create(product=product, size=size, side=side, price=price, owner=owner, due_at=due_at)


def _trade(seen: Offer, taker: str, best: str) -> Trade:
    live = Offer.objects.of(seen.product, seen.size).live().filter(side=seen.side)
    # Read again: what the customer saw may be sold, cancelled or over by now.
    offer = live.order_by(best, "id").first()
    if offer is None or offer.pk != seen.pk:
        raise Refused("it is not there any more")
    time.sleep(THINK_SECONDS)
    Offer.objects.filter(pk=offer.pk).update(signed_at=UtcNow())
    return Trade.objects.create(offer=offer, price=offer.price, taker=taker)
