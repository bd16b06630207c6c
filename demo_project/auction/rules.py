"""The rules of the auction. Each function reads, thinks and writes; the lock that excludes others is the caller's.

No bid above the lowest ask, no ask below the highest bid; equal prices are allowed. Offers that are signed, cancelled
or past their date do not count. A trade takes the best offer at its price, and reads the market again before it signs.
"""

import time
from datetime import datetime

from django.db.models import Max, Min, Q

from demo_project.auction.models import Offer, Trade
from jobqueue.db.clock import UtcNow

#: time between reading the market and writing: fees, limits, other queries
THINK_SECONDS = 0.001


class Refused(Exception):
    """The rules do not allow the move now. Nothing was written."""


def market(product: str, size: str) -> tuple[int | None, int | None]:
    """(highest live bid, lowest live ask), read by one statement."""
    found = (
        Offer.objects.of(product, size)
        .live()
        .aggregate(high=Max("price", filter=Q(side=Offer.Side.BID)), low=Min("price", filter=Q(side=Offer.Side.ASK)))
    )
    return found["high"], found["low"]


def is_crossed(product: str, size: str) -> bool:
    """Whether the rule is broken: a bid is above an ask."""
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
    """The best live offer of one side, as a customer sees it."""
    price = "price" if side == Offer.Side.ASK else "-price"
    return Offer.objects.of(product, size).live().filter(side=side).order_by(price, "id").first()


def cancel(seen: Offer, owner: str) -> None:
    """Cancel an offer. Refused for other customers, and if it is signed, cancelled or past its date."""
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
    # Read again: the offer may have been sold or cancelled, or may have ended, since the customer saw it.
    offer = live.order_by(best, "id").first()
    if offer is None or offer.pk != seen.pk:
        raise Refused("it is not there any more")
    time.sleep(THINK_SECONDS)
    Offer.objects.filter(pk=offer.pk).update(signed_at=UtcNow())
    return Trade.objects.create(offer=offer, price=offer.price, taker=taker)
