"""Orders: an order and its event are written in one transaction."""

from django.db import transaction

from demo_project.orders.models import Order
from jobqueue.outbox import publish

TOPIC = "order.placed"


class CardDeclined(Exception):
    """The customer cannot pay; the order is rolled back."""


def place(reference: str, customer: str, product: str, quantity: int, *, run: str, pays: bool = True) -> Order:
    """Write an order and its event; both are committed or neither. Raises CardDeclined after both were written."""
    facts = {"reference": reference, "run": run, "customer": customer, "product": product, "quantity": quantity}
    with transaction.atomic():
        event_id = publish(TOPIC, facts, key=customer)
        order = Order.objects.create(**facts, event_id=event_id)
        if not pays:
            raise CardDeclined(reference)
    return order
