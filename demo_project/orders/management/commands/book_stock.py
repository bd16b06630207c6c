"""python manage.py book_stock: run the warehouse until SIGTERM, then until its mailbox is empty."""

import signal
import time
from contextlib import closing
from typing import Any

from django.core.management.base import BaseCommand

from demo_project.orders.mailbox import open_mailbox
from demo_project.orders.warehouse import book

LOOK_SECONDS = 0.05


class Command(BaseCommand):
    """Exit status 0."""

    help = "Book stock for each order that arrives by e-mail, or by RabbitMQ with BROKER_URL. SIGTERM ends it."

    def handle(self, *args: Any, **given: Any) -> None:
        # No threading.Event: its set() takes a lock. A signal that interrupts wait() may find this lock taken for ever.
        stopped: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: stopped.append(number))
        booked = repeats = 0
        with closing(open_mailbox()) as mailbox:
            last_round = False
            while not last_round:
                last_round = bool(stopped)
                for message in mailbox.receive():
                    # After the signal, messages may still be on their way.
                    last_round = False
                    if book(message):
                        booked += 1
                    else:
                        repeats += 1
                if not last_round:
                    time.sleep(LOOK_SECONDS)
        if given["verbosity"] > 0:
            self.stdout.write(f"{booked} orders booked, {repeats} repeated messages dropped")
