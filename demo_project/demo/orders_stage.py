"""The second stage of the demo: orders and their events, a relay that is killed, and a warehouse that books once."""

import os
import shutil
import signal
import time
import uuid
from contextlib import suppress

from django.conf import settings
from django.core.management.base import OutputWrapper
from django.db.models import Count, Max, Min, QuerySet

from demo_project.demo.giving_up import GaveUp, Pace, TimeUp, undisturbed
from demo_project.demo.program import Program
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof
from demo_project.demo.speed import stretched
from demo_project.orders.mailbox import MailFolder
from demo_project.orders.models import Booking, Order, Receipt, Stock
from demo_project.orders.shop import CardDeclined, place
from jobqueue.models import OutboxEvent

#: ORDERS_MIN: on the slowest machine; ORDERS_MORE: the next ones, if all are delivered before a relay can be killed
ORDERS, ORDERS_MIN, ORDERS_MORE = 500, 120, 120
CUSTOMERS, QUANTITY = 50, 3
#: one of so many customers cannot pay, so that the order is rolled back
DECLINED_EVERY = 8
PRODUCT, IN_STOCK = "lamp", 10_000
LOOK_SECONDS = 0.02
#: seconds without a message after which a stopped relay has sent nothing more
FREEZE_SECONDS, FREEZE_SECONDS_MAX = 0.3, 2.0


class OrdersStage:
    """One run: place orders, relay them, kill a relay, book."""

    def __init__(self, out: OutputWrapper, orders: int = ORDERS) -> None:
        self.out, self.orders = out, orders
        self.run_id = uuid.uuid4().hex
        self.declined: set[str] = set()
        self.killed = 0
        self.seconds = 0.0
        self._relays = [Program("relay_outbox")]
        self._warehouse = Program("book_stock")

    @property
    def mailbox(self) -> str:
        """How the messages are sent."""
        if settings.BROKER_URL:
            return "messages to RabbitMQ"
        return f"e-mails to {os.path.relpath(settings.MAIL_DIR)} (to RabbitMQ if BROKER_URL is set)"

    def place(self) -> None:
        """Place all orders, each in its own transaction. Rows of an earlier run are deleted."""
        shutil.rmtree(settings.MAIL_DIR, ignore_errors=True)
        settings.MAIL_DIR.mkdir(parents=True)
        for model in (Order, Receipt, Booking, Stock):
            model.objects.all().delete()
        Stock.objects.create(product=PRODUCT, on_hand=IN_STOCK)
        self._place(range(self.orders))

    def _place(self, numbers: range) -> None:
        for n in numbers:
            reference, pays = f"{self.run_id[:8]}-{n}", n % DECLINED_EVERY != 0
            with suppress(CardDeclined):
                place(reference, f"customer-{n % CUSTOMERS}", PRODUCT, QUANTITY, run=self.run_id, pays=pays)
            if not pays:
                self.declined.add(reference)

    def work(self) -> None:
        """Relay until every order is booked, and kill a relay meanwhile."""
        began = time.monotonic()
        orders = Order.objects.filter(run=self.run_id).count()
        progress, pace = Progress(orders, "orders booked", self.out), Pace(orders, "orders booked")
        try:
            with progress.moving():
                for program in self._programs():
                    progress.say(program.typed)
                    program.start()
                while min(self._delivered(), self._booked()) < orders or not self.killed:
                    pace.see(self._booked())
                    progress.show(pace.done)
                    self._step(progress, orders)
                    if not self.killed and self._booked() == orders:
                        orders = self._more(progress)
                    time.sleep(LOOK_SECONDS)
                progress.show(self._booked())
        except TimeUp:
            raise GaveUp(self._cause(pace)) from None
        finally:
            with undisturbed():
                for program in self._programs():
                    program.stop()
        self.seconds = time.monotonic() - began
        for program in self._programs():
            for line in program.warnings():
                progress.say(f"{program.arguments[0]}: {line}")

    def _more(self, progress: Progress) -> int:
        """More orders for the relay, which has delivered all before it could be killed; how many are committed."""
        self._place(range(self.orders, self.orders + ORDERS_MORE))
        self.orders += ORDERS_MORE
        progress.say(f"All were delivered before the relay could be killed: {ORDERS_MORE} more orders.")
        progress.total = Order.objects.filter(run=self.run_id).count()
        return progress.total

    def _programs(self) -> list[Program]:
        """All programs; the warehouse is the last one, because it books what is still in its mailbox."""
        return [*self._relays, self._warehouse]

    def _step(self, progress: Progress, orders: int) -> None:
        if not self.killed and 5 * self._delivered() >= orders:
            self._kill_a_relay(progress)
        for program in self._programs():
            if ended := program.failed():
                raise GaveUp(f"A program ended by itself. {ended}")

    def _cause(self, pace: Pace) -> str:
        """Kill the programs, and say why orders are left."""
        for program in self._programs():
            program.abort()
        pace.see(self._booked())
        waiting = self._events().filter(processed_at=None)
        told = f"{pace.cause()}. Events not delivered: {waiting.count()}."
        error = waiting.exclude(last_error=None).values_list("last_error", flat=True).first()
        return f"{told} One of them failed with: {error.strip().splitlines()[-1]}" if error else told

    def proofs(self) -> list[Proof]:
        """Every committed order arrived and was booked once, and no other."""
        orders = Order.objects.filter(run=self.run_id)
        committed = orders.count()
        references = set(orders.values_list("reference", flat=True))
        arrived = self._arrived()
        bookings = Booking.objects.filter(run=self.run_id)
        per_order = bookings.values("reference").annotate(n=Count("pk")).aggregate(least=Min("n"), most=Max("n"))
        booked = IN_STOCK - Stock.objects.get(product=PRODUCT).on_hand
        where = "RabbitMQ" if settings.BROKER_URL else "the mail folder"
        return [
            Proof("orders committed", self.orders - len(self.declined), committed),
            Proof("their events marked as delivered", committed, self._delivered()),
            Proof(f"orders with a message in {where}", committed, len(references & arrived)),
            Proof(f"rolled-back orders with a message in {where}", 0, len(self.declined & arrived)),
            Proof("relays killed by SIGKILL between send and mark", 1, self.killed),
            Proof("messages that came again to the warehouse", "at least 1", self.repeats(), at_least=1),
            Proof("bookings per order, least and most", "1 and 1", f"{per_order['least']} and {per_order['most']}"),
            Proof("taken from stock, orders x quantity", committed * QUANTITY, booked),
        ]

    def repeats(self) -> int:
        """The number of messages that the warehouse received again."""
        got = Receipt.objects.filter(run=self.run_id)
        return got.count() - got.values("event_id").distinct().count()

    def _arrived(self) -> set[str]:
        """The references of all messages: those in the e-mails, or those received from the broker."""
        if settings.BROKER_URL:
            return set(Receipt.objects.filter(run=self.run_id).values_list("reference", flat=True))
        return {message.payload["reference"] for message in MailFolder(settings.MAIL_DIR).receive()}

    def _booked(self) -> int:
        return Booking.objects.filter(run=self.run_id).count()

    def _events(self) -> "QuerySet[OutboxEvent]":
        return OutboxEvent.objects.filter(pk__in=Order.objects.filter(run=self.run_id).values("event_id"))

    def _delivered(self) -> int:
        return self._events().exclude(processed_at=None).count()

    def _kill_a_relay(self, progress: Progress) -> None:
        """kill -9 a relay that has sent a message but has not marked it yet; no program can avoid that gap."""
        (relay,) = self._relays
        if not self._events().exclude(lock_token=None).exists():
            return
        relay.send(signal.SIGSTOP)
        received, still_since = -1, time.monotonic()
        freeze = stretched(FREEZE_SECONDS, FREEZE_SECONDS_MAX)
        # Wait until the warehouse has received what was sent.
        while not (found := self._has_unmarked()) and time.monotonic() - still_since < freeze:
            count = Receipt.objects.filter(run=self.run_id).count()
            if count != received:
                received, still_since = count, time.monotonic()
            time.sleep(LOOK_SECONDS)
        if not found:
            # The relay was between two sends; try again.
            relay.send(signal.SIGCONT)
            return
        relay.kill()
        # The server may have received the marks already, and commits them late on a busy machine.
        time.sleep(freeze)
        if not self._has_unmarked():
            relay.start()
            return
        self.killed = 1
        progress.say(f"$ kill -9 {relay.pid}    the relay, which has sent messages that it has not marked as delivered")
        progress.say("Two relays take its place. Events that it had claimed follow when its lease on them has expired.")
        for successor in (Program("relay_outbox"), Program("relay_outbox")):
            progress.say(successor.typed)
            successor.start()
            self._relays.append(successor)

    def _has_unmarked(self) -> bool:
        got = Receipt.objects.filter(run=self.run_id).values("event_id")
        return self._events().filter(processed_at=None, pk__in=got).exists()
