"""Redis Streams, through redis-py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobqueue.exceptions import DestinationDown
from jobqueue.outbox.destinations.base import Destination, Outcome, library
from jobqueue.outbox.event import Event
from jobqueue.wakeup.redis_client import connect

if TYPE_CHECKING:
    from redis import Redis

#: the longest wait for a connection, and for the answers to one batch
WAIT_SECONDS = 10.0
OPTIONS = {"URL", "STREAM", "MAXLEN"}
#: the schemes of routes, and the scheme by which redis-py knows the server
SCHEMES = {"redis-stream": "redis", "rediss-stream": "rediss"}


class RedisStream(Destination):
    """redis-stream://host:port/db (rediss-stream: with TLS): one entry per event, by XADD.

    STREAM is the stream (default: the topic), MAXLEN about how many entries it keeps (default: all). The fields of an
    entry are the headers and "payload", as JSON.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._library = library("redis", options, OPTIONS, "pip install redis")
        scheme, _, rest = url.partition("://")
        self._url, self._options = f"{SCHEMES[scheme]}://{rest}", options
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
