"""Brokers: Redis Streams through redis-py, Kafka through confluent-kafka, RabbitMQ and others through kombu."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jobqueue.base.validation import did_you_mean
from jobqueue.exceptions import DestinationDown, WrongSettings
from jobqueue.outbox.destinations.base import Destination, Event, Outcome, library
from jobqueue.wakeup.redis_client import connect

if TYPE_CHECKING:
    from redis import Redis

#: the longest wait for a connection, and for the answers to one batch
WAIT_SECONDS = 10.0
STREAM_OPTIONS = {"URL", "STREAM", "MAXLEN"}
#: the schemes of routes, and the scheme by which redis-py knows the server
STREAM_SCHEMES = {"redis-stream": "redis", "rediss-stream": "rediss"}


class RedisStream(Destination):
    """redis-stream://host:port/db (rediss-stream: with TLS): one entry per event, by XADD.

    STREAM is the stream (default: the topic), MAXLEN about how many entries it keeps (default: all). The fields of an
    entry are the headers and "payload", as JSON.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._library = library("redis", options, STREAM_OPTIONS, "pip install redis")
        scheme, _, rest = url.partition("://")
        self._url, self._options = f"{STREAM_SCHEMES[scheme]}://{rest}", options
        self._client: Redis | None = None

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """Send all events in one round trip. Redis refuses streams, not events, so no event is charged."""
        if self._client is None:
            self._client = connect(self._url, WAIT_SECONDS, "JOBQUEUE['OUTBOX']['ROUTES']")
        maxlen = self._options.get("MAXLEN")
        pipeline = self._client.pipeline(transaction=False)
        for event in events:
            fields: dict[Any, Any] = dict(event.headers)
            fields["payload"] = json.dumps(event.payload, ensure_ascii=False, separators=(",", ":"))
            stream = str(self._options.get("STREAM", event.topic))
            pipeline.xadd(stream, fields, maxlen=maxlen, approximate=True)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except (self._library.RedisError, OSError) as error:
            # Some may have arrived: all are sent again, with the same ids.
            self.close()
            answers = [error] * len(events)
        return [
            DestinationDown(f"Redis: {type(answer).__name__}: {answer}") if isinstance(answer, Exception) else None
            for answer in answers
        ]

    def ping(self, seconds: float) -> None:
        """Ping the server by a connection of its own."""
        client = connect(self._url, seconds, "JOBQUEUE['OUTBOX']['ROUTES']")
        try:
            client.ping()
        finally:
            client.close()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


#: a message that is not confirmed within this time counts as not arrived
KAFKA_OPTIONS = {"URL", "TOPIC", "CONFIG"}


class KafkaBroker(Destination):
    """kafka://host:port,host:port: one message per event, keyed by its key, confirmed by all in-sync replicas.

    TOPIC is the topic (default: the event's), CONFIG is given to confluent_kafka.Producer. The id is in the headers.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._library = library("confluent_kafka", options, KAFKA_OPTIONS, "pip install confluent-kafka")
        self._servers, self._options = urlsplit(url).netloc, options
        self._producer: Any = None

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """Send all events at once and wait for every confirmation."""
        producer = self._connected()
        outcomes: dict[int, Any] = {}
        for event in events:
            try:
                producer.produce(
                    str(self._options.get("TOPIC", event.topic)),
                    json.dumps(event.payload, ensure_ascii=False, separators=(",", ":")).encode(),
                    key=event.key_bytes,
                    headers={name: text.encode() for name, text in event.headers.items()},
                    on_delivery=lambda error, _, event_id=event.id: outcomes.__setitem__(event_id, error),
                )
            except (BufferError, self._library.KafkaException) as error:
                outcomes[event.id] = error.args[0] if error.args else error
        producer.flush(WAIT_SECONDS + 1)
        timed_out = self._library.KafkaError(self._library.KafkaError._MSG_TIMED_OUT)
        answers = [outcomes.get(event.id, timed_out) for event in events]
        if any(answers):
            # The producer must not send a failed event later, after others of its key.
            self.close()
        return [self._outcome(answer) for answer in answers]

    def ping(self, seconds: float) -> None:
        """Ping the broker by asking for the list of topics."""
        self._connected().list_topics(timeout=seconds)

    def close(self) -> None:
        """Close the producer and drop what was not confirmed."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(1)

    def _connected(self) -> Any:
        if self._producer is None:
            config = {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": int(WAIT_SECONDS * 1000),
                "linger.ms": 2,
            }
            self._producer = self._library.Producer({**config, **self._options.get("CONFIG", {})})
        return self._producer

    def _outcome(self, error: Any) -> Outcome:
        if error is None:
            return None
        if isinstance(error, self._library.KafkaError):
            codes = self._library.KafkaError
            bad = (codes.MSG_SIZE_TOO_LARGE, codes.INVALID_MSG, codes.TOPIC_EXCEPTION, codes._UNKNOWN_TOPIC)
            if error.code() not in bad:
                return DestinationDown(f"Kafka: {error.str()}")
            return self._library.KafkaException(error)  # type: ignore[no-any-return]
        return DestinationDown(f"Kafka: {error}")


#: the longest wait for a connection, and for one confirmation
_NOT_FOUND = 404
KOMBU_OPTIONS = {"URL", "EXCHANGE", "ROUTING_KEY", "QUEUE", "TRANSPORT_OPTIONS"}
#: the first part of a URL that kombu knows without an extra package of its own; an installed kombu may know more
SCHEMES = {"amqp", "amqps", "pyamqp", "redis", "rediss", "sentinel", "sqs", "memory", "filesystem"}
#: what a scheme needs besides kombu itself
_PACKAGES = {**dict.fromkeys(["redis", "rediss", "sentinel"], '"kombu[redis]"'), "sqs": '"kombu[sqs]"'}


class KombuBroker(Destination):
    """One message per event: body and headers as JSON, message_id = the event's id, persistent.

    EXCHANGE and ROUTING_KEY (default: the topic) route the message; without an EXCHANGE it goes to the queue QUEUE
    (default: the topic), which is declared if it is missing. RabbitMQ confirms each message, and refuses those that no
    queue would get.
    """

    # One by one: confirmations may be slow, and the relay checks its lease before each event.
    bulk = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        _check_scheme(url)
        package = _PACKAGES.get(url.partition("://")[0], "kombu")
        self._kombu = library("kombu", options, KOMBU_OPTIONS, f"pip install {package}")
        self._url, self._options = url, options
        self._connection: Any = None
        self._producer: Any = None
        self._declared: set[str] = set()

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """Send one event after the other, with confirmation where the broker supports it."""
        outcomes: list[Outcome] = []
        for event in events:
            try:
                self._publish(event)
            except Exception as error:
                # The error may have closed the channel.
                down: Exception = error
                if isinstance(error, self._lost_connection()):
                    down = DestinationDown(f"{type(error).__name__}: {error}")
                self.close()
                if isinstance(down, DestinationDown):
                    # The broker is not tried for the rest: each try could take WAIT_SECONDS.
                    return outcomes + [down] * (len(events) - len(outcomes))
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def ping(self, seconds: float) -> None:
        """Ping the broker once, by a connection of its own."""
        options = self._options.get("TRANSPORT_OPTIONS", {})
        with self._kombu.Connection(self._url, connect_timeout=seconds, transport_options=options) as connection:
            connection.ensure_connection(max_retries=1, timeout=seconds)

    def close(self) -> None:
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
            # SQS keeps the order within a group, and drops a repeat within five minutes.
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
        """Declare the queue if it is missing. Raises DestinationDown if the broker refuses: no event is at fault."""
        if queue in self._declared:
            return
        try:
            if not self._is_there(queue):
                self._queue(queue).queue_declare()
        except self._connection.channel_errors as error:
            raise DestinationDown(f"the queue {queue!r} cannot be used: {error}") from error
        self._declared.add(queue)

    def _is_there(self, queue: str) -> bool:
        """Return whether the queue exists: AMQP brokers refuse to declare it again with other arguments."""
        if self._connection.transport.driver_type != "amqp":
            return False
        try:
            self._queue(queue).queue_declare(passive=True)
        except self._connection.channel_errors as error:
            if getattr(error, "reply_code", None) != _NOT_FOUND:
                raise
            # The broker closes the channel with this answer.
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


def _check_scheme(url: str) -> None:
    """Raise WrongSettings for a URL that kombu does not know. The message leaves the rest out, it holds a password."""
    scheme = url.partition("://")[0].partition("+")[0].lower()
    if scheme in SCHEMES or "." in scheme:  # with a dot it is the path of a class
        return
    try:
        from kombu.transport import TRANSPORT_ALIASES
    except ImportError:
        TRANSPORT_ALIASES = {}
    known = SCHEMES | {name.lower() for name in TRANSPORT_ALIASES}
    if scheme not in known:
        near = did_you_mean(scheme, {*known, "kafka", "redis-stream", "rediss-stream"})
        raise WrongSettings(
            f"no broker is known for {scheme}://{near}. Use amqp://, redis://, redis-stream://, sqs:// or kafka://, "
            "'queue:NAME' or 'subscribers'."
        )
