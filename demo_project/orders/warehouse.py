"""The consumer: books stock for every message, through the inbox."""

from django.db.models import F

from demo_project.orders.mailbox import Message
from demo_project.orders.models import Booking, Order, Receipt, Stock
from jobqueue.idempotency import once


def book(message: Message) -> bool:
    """Take an order out of the stock; False if that was done before. A message may arrive several times."""
    order = message.payload
    reference, run = str(order["reference"]), str(order["run"])
    if not Order.objects.filter(reference=reference, run=run).exists():
        # A message of an earlier run of the demo.
        return False
    Receipt.objects.create(event_id=message.event_id, reference=reference, run=run)
    with once(("book stock", run, message.event_id)) as o:
        if not o.done:
            Stock.objects.filter(product=order["product"]).update(on_hand=F("on_hand") - order["quantity"])
            Booking.objects.create(reference=reference, run=run, quantity=order["quantity"])
            o.result = reference
    return not o.done
