"""The messages of the warehouse: a queue of RabbitMQ, or a folder of e-mails."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

#: the line that Django's file-based backend writes after each message; without it a message is incomplete
END_OF_MAIL = b"-" * 79 + b"\n"


class Message(NamedTuple):
    """One message; `event_id` is its message id."""

    event_id: int
    payload: dict[str, Any]


class MailFolder:
    """The complete e-mails below a folder; each object of this class returns each e-mail once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def receive(self) -> Iterator[Message]:
        """The e-mails since the last call."""
        for path in sorted(self._folder.glob("*/*.log")):
            begin = self._read.get(path, 0)
            if path.stat().st_size == begin:
                continue
            with path.open("rb") as file:
                file.seek(begin)
                # The last part is a message that a relay is writing, or was writing when it was killed.
                *mails, _ = file.read().split(END_OF_MAIL)
            for mail in mails:
                yield _parsed(mail)
                begin += len(mail) + len(END_OF_MAIL)
                self._read[path] = begin

    def close(self) -> None:
        """Do nothing: no file is open."""


class BrokerQueue:
    """The messages of a RabbitMQ queue; each is acked when the caller asks for the next one."""

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
        """The messages that are in the queue now or arrive soon."""
        with suppress(socket.timeout):
            while True:
                # Receives one message per call.
                self._connection.drain_events(timeout=0.05)
                while self._messages:
                    message = self._messages.pop()
                    yield Message(int(message.properties["message_id"]), json.loads(message.body))
                    message.ack()

    def close(self) -> None:
        """Close the connection; messages that were not acked stay in the queue."""
        self._connection.release()


def open_mailbox() -> MailFolder | BrokerQueue:
    """The mailbox that the settings name."""
    if settings.BROKER_URL:
        return BrokerQueue(settings.BROKER_URL, settings.ORDERS_QUEUE)
    return MailFolder(settings.MAIL_DIR)


def _parsed(mail: bytes) -> Message:
    found = message_from_bytes(mail, policy=policy.default)
    event_id = found["Message-ID"].strip("<>").partition("@")[0]
    return Message(int(event_id), json.loads(found.get_content()))  # type: ignore[attr-defined]
