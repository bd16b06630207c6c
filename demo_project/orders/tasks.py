"""The subscriber that sends the events of orders as e-mails, if there is no broker."""

import json
import os
from email.utils import formatdate
from pathlib import Path

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from demo_project.orders.shop import TOPIC
from jobqueue.outbox import Event, subscriber


@subscriber(TOPIC)
def mail_to_warehouse(event: Event) -> None:
    """Runs in a relay, at least once per event; the event's id is the message's id. With BROKER_URL a route is used."""
    # A folder per relay, because two processes may choose the same file name.
    folder = Path(settings.MAIL_DIR, f"relay-{os.getpid()}")
    EmailMessage(
        f"Order {event.payload['reference']}",
        json.dumps(event.payload),
        from_email="shop@example.com",
        to=["warehouse@example.com"],
        headers={"Message-ID": f"<{event.id}@outbox.example.com>", "Date": formatdate(event.published_at.timestamp())},
        connection=get_connection(settings.MAIL_BACKEND, file_path=str(folder)),
    ).send()
