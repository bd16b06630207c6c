"""Where the warehouse finds its messages: a queue of RabbitMQ, or the folder of e-mails."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

#: what Django's file-based backend writes below each message; without it a message is not complete
END_OF_MAIL = b"-" * 79 + b"\n"


class Message(NamedTuple):
    """One message; `event_id` is its message id."""

    event_id: int
    payload: dict[str, Any]


class MailFolder:
    """Complete e-mails below a folder, each once per object of this class."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def receive(self) -> Iterator[Message]:
        """What has come since the last call."""
        for path in sorted(self._folder.glob("*/*.log")):
            begin = self._read.get(path, 0)
            if path.stat().st_size == begin:
                continue
            with path.open("rb") as file:
                file.seek(begin)
                # The last piece is what a relay is writing just now, or was writing when it was killed.
                *mails, _ = file.read().split(END_OF_MAIL)
            for mail in mails:
                yield _parsed(mail)
                begin += len(mail) + len(END_OF_MAIL)
                self._read[path] = begin

    def close(self) -> None:
        """Nothing is open."""


class BrokerQueue:
    """The messages of a RabbitMQ queue, acked after the caller is done with each."""

    def __init__(self, url: str, queue: str) -> None:
        import kombu

        self._connection = kombu.Connection(url)
        channel = self._connection.channel()
        found = kombu.Queue(queue, durable=True, channel=channel)
        found.queue_declare()
        self._messages: list[Any] = []
        self._consumer = kombu.Consumer(channel, [found], on_message=self._messages.append, prefetch_count=50)
        self._consumer.consume()

    def receive(self) -> Iterator[Message]:
        """What is there now, and a little later."""
        with suppress(socket.timeout):
            while True:
                # One message each time.
                self._connection.drain_events(timeout=0.05)
                while self._messages:
                    message = self._messages.pop()
                    yield Message(int(message.properties["message_id"]), json.loads(message.body))
                    message.ack()

    def close(self) -> None:
        """What was not acked stays in the queue."""
        self._connection.release()


def open_mailbox() -> MailFolder | BrokerQueue:
    """As the settings say."""
    if settings.BROKER_URL:
        return BrokerQueue(settings.BROKER_URL, settings.ORDERS_QUEUE)
    return MailFolder(settings.MAIL_DIR)


def _parsed(mail: bytes) -> Message:
    found = message_from_bytes(mail, policy=policy.default)
    event_id = found["Message-ID"].strip("<>").partition("@")[0]
    return Message(int(event_id), json.loads(found.get_content()))  # type: ignore[attr-defined]
