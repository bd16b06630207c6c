"""Kafka, through confluent-kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from jobqueue.exceptions import DestinationDown
from jobqueue.outbox.destinations.base import Destination, Outcome, library
from jobqueue.outbox.event import Event

#: a message that is not confirmed within this time counts as not arrived
WAIT_SECONDS = 10.0
OPTIONS = {"URL", "TOPIC", "CONFIG"}


class KafkaBroker(Destination):
    """kafka://host:port,host:port: one message per event, keyed by its key, confirmed by all in-sync replicas.

    TOPIC is the topic (default: the event's), CONFIG is given to confluent_kafka.Producer. The id is in the headers.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._library = library("confluent_kafka", options, OPTIONS, "pip install confluent-kafka")
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
