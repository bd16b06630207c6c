"""Without a broker: the events of orders as e-mails."""

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
    """Sent in a relay, at least once; the event's id is the message's id. With BROKER_URL a route takes the topic."""
    # A folder per relay: the backend's file names do not tell processes apart.
    folder = Path(settings.MAIL_DIR, f"relay-{os.getpid()}")
    EmailMessage(
        f"Order {event.payload['reference']}",
        json.dumps(event.payload),
        from_email="shop@example.com",
        to=["warehouse@example.com"],
        headers={"Message-ID": f"<{event.id}@outbox.example.com>", "Date": formatdate(event.published_at.timestamp())},
        connection=get_connection(settings.MAIL_BACKEND, file_path=str(folder)),
    ).send()
