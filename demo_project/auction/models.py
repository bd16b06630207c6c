"""Bids and asks, and the trades that were made."""

from django.db import models
from django.db.models import Q

from jobqueue.db.clock import UtcNow


class OfferQuerySet(models.QuerySet):
    """Offers of one (product, size)."""

    def of(self, product: str, size: str) -> "OfferQuerySet":
        """All offers of a product in a size."""
        return self.filter(product=product, size=size)

    def live(self) -> "OfferQuerySet":
        """Offers that are not signed, not cancelled, and not past their date by the database's clock."""
        return self.filter(signed_at=None, cancelled_at=None, due_at__gt=UtcNow())


class Offer(models.Model):
    """A bid (somebody wants to buy) or an ask (somebody wants to sell), in cents."""

    class Side(models.TextChoices):
        """Whether an offer is a bid or an ask."""

        BID = "bid"
        ASK = "ask"

    product = models.CharField(max_length=32)
    size = models.CharField(max_length=16)
    side = models.CharField(max_length=3, choices=Side.choices)
    price = models.PositiveIntegerField()
    owner = models.CharField(max_length=32)
    due_at = models.DateTimeField()
    signed_at = models.DateTimeField(null=True)
    cancelled_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = OfferQuerySet.as_manager()

    class Meta:
        indexes = [
            # Limits what a row lock reads to one (product, size). The race drops it to show the effect.
            models.Index(fields=["product", "size", "side", "price"], name="ix_offer_market"),
        ]
        constraints = [models.CheckConstraint(condition=Q(price__gt=0), name="ck_offer_price")]

    def __str__(self) -> str:
        return f"{self.side} {self.price} for {self.product}, {self.size}"


class Trade(models.Model):
    """One accepted offer. No constraint stops a second sale of an offer, because the race counts such sales."""

    offer = models.ForeignKey(Offer, on_delete=models.CASCADE)
    price = models.PositiveIntegerField()
    taker = models.CharField(max_length=32)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.offer_id} to {self.taker} for {self.price}"
