"""RabbitMQ over AMQP, Redis, SQS and whatever else kombu speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobqueue.exceptions import DestinationDown
from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.event import Event

#: connecting and one confirmation take no longer
WAIT_SECONDS = 10.0
_NOT_FOUND = 404
OPTIONS = {"URL", "EXCHANGE", "ROUTING_KEY", "QUEUE", "TRANSPORT_OPTIONS"}


class KombuBroker(Destination):
    """One message per event: body and headers as JSON, message_id = the event's id, persistent.

    EXCHANGE and ROUTING_KEY (default: the topic) say where to; without an EXCHANGE the message goes to a queue, QUEUE
    or the topic, which is made if it is missing. RabbitMQ confirms each message, and refuses those that no
    queue would get.
    """

    # Confirmed one by one, which may be slow: the relay looks at its lease before each.
    bulk = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        unknown = set(options) - OPTIONS
        if unknown:
            raise ImproperlyConfigured(f"JOBQUEUE['OUTBOX']['ROUTES']: unknown options {sorted(unknown)} of a broker")
        self._kombu = _library()
        self._url, self._options = url, options
        self._connection: Any = None
        self._producer: Any = None
        self._declared: set[str] = set()

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """One after the other, each confirmed where the broker confirms."""
        outcomes: list[Outcome] = []
        for event in events:
            try:
                self._publish(event)
            except DestinationDown as error:
                self.close()
                return outcomes + [error] * (len(events) - len(outcomes))
            except self._lost_connection() as error:
                self.close()
                # Not asked again for each of the rest: it takes its time to say so.
                down = DestinationDown(f"{type(error).__name__}: {error}")
                return outcomes + [down] * (len(events) - len(outcomes))
            except Exception as error:
                # The channel may be closed by it.
                self.close()
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def close(self) -> None:
        """End the connection."""
        connection, self._connection, self._producer = self._connection, None, None
        self._declared.clear()
        if connection is not None:
            with suppress(Exception):
                connection.release()

    def _publish(self, event: Event) -> None:
        self._connected()
        exchange = self._options.get("EXCHANGE", "")
        target = str(self._options.get("ROUTING_KEY" if exchange else "QUEUE", event.topic))
        properties: dict[str, Any] = {}
        if not exchange:
            self._declare(target)
        if target.endswith(".fifo"):
            # SQS: order within the group, and a repeat within five minutes is dropped by the service.
            group = event.headers.get("key", str(event.id))
            properties = {"MessageGroupId": group, "MessageDeduplicationId": str(event.id)}
        self._producer.publish(
            event.payload,
            exchange=exchange,
            routing_key=target,
            serializer="json",
            headers=event.headers,
            message_id=str(event.id),
            type=event.topic,
            timestamp=int(event.published_at.timestamp()),
            delivery_mode=2,
            mandatory=True,
            timeout=WAIT_SECONDS,
            retry=False,
            **properties,
        )

    def _connected(self) -> Any:
        if self._producer is None:
            options = {"confirm_publish": True, **self._options.get("TRANSPORT_OPTIONS", {})}
            self._connection = self._kombu.Connection(
                self._url, connect_timeout=WAIT_SECONDS, transport_options=options, heartbeat=0
            )
            self._connection.ensure_connection(max_retries=1, timeout=WAIT_SECONDS)
            self._producer = self._new_producer()
        return self._producer

    def _new_producer(self) -> Any:
        return self._kombu.Producer(self._connection.channel(), auto_declare=False)

    def _declare(self, queue: str) -> None:
        """See that there is a queue. Raises DestinationDown where the broker refuses it: no event is at fault."""
        if queue in self._declared:
            return
        try:
            if not self._is_there(queue):
                self._queue(queue).queue_declare()
        except self._connection.channel_errors as error:
            raise DestinationDown(f"the queue {queue!r} cannot be used: {error}") from error
        self._declared.add(queue)

    def _is_there(self, queue: str) -> bool:
        """One that is there keeps its own arguments: AMQP brokers refuse to declare it again with others."""
        if self._connection.transport.driver_type != "amqp":
            return False
        try:
            self._queue(queue).queue_declare(passive=True)
        except self._connection.channel_errors as error:
            if getattr(error, "reply_code", None) != _NOT_FOUND:
                raise
            # The answer has closed the channel.
            self._producer = self._new_producer()
            return False
        return True

    def _queue(self, queue: str) -> Any:
        return self._kombu.Queue(queue, durable=True, channel=self._producer.channel)

    def _lost_connection(self) -> tuple[type[BaseException], ...]:
        found: list[Any] = [OSError, self._kombu.exceptions.OperationalError]
        if self._connection is not None:
            found += self._connection.connection_errors
        return tuple(found)


def _library() -> Any:
    try:
        import kombu
    except ImportError:
        raise ImproperlyConfigured(
            "JOBQUEUE['OUTBOX']['ROUTES'] names a broker and kombu is not installed. Install it with: "
            'pip install "jobqueue[kombu]", for SQS "jobqueue[sqs]"'
        ) from None
    return kombu
