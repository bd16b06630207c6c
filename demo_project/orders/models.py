"""Orders, the stock, and evidence of what the consumer received and did."""

from django.db import models


class Stock(models.Model):
    """The number of pieces of a product."""

    product = models.CharField(max_length=32, unique=True)
    on_hand = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.on_hand} x {self.product}"


class Order(models.Model):
    """One order that was committed, and the event that was committed with it."""

    reference = models.CharField(max_length=40, unique=True)
    run = models.CharField(max_length=32)
    customer = models.CharField(max_length=32)
    product = models.CharField(max_length=32)
    quantity = models.IntegerField()
    event_id = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.reference}: {self.quantity} x {self.product} for {self.customer}"


class Receipt(models.Model):
    """Append-only evidence: one row per received message, repeats included; written before the inbox is checked."""

    event_id = models.BigIntegerField()
    reference = models.CharField(max_length=40)
    run = models.CharField(max_length=32)

    def __str__(self) -> str:
        return f"event {self.event_id} for {self.reference}"


class Booking(models.Model):
    """Append-only evidence: one row per committed effect. No constraint allows one per order only: the proof does."""

    reference = models.CharField(max_length=40)
    run = models.CharField(max_length=32)
    quantity = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.quantity} for {self.reference}"
