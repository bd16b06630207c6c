"""The only module that imports redis-py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobqueue.exceptions import WrongSettings
from jobqueue.wakeup.redis_server import find_server

if TYPE_CHECKING:
    from redis import Redis


def connect(place: str, wait_seconds: float, setting: str) -> Redis:
    """A redis-py client for `place`, which connects on first use. `setting` names the setting that holds `place`.

    `place` is a Redis URL, or "cache:ALIAS": then the options of that cache count. The client has a pool of its own in
    either case, so that a connection that waits for messages is none of the cache's.
    Raises WrongSettings without redis-py or such a cache. `wait_seconds` limits connecting and each command. Commands
    are not retried: a late wake-up is worthless, and the caller of a lock retries by itself.
    """
    try:
        from redis import ConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise WrongSettings(
            f"{setting} needs redis-py, which is not installed. Install it with: pip install redis"
        ) from None
    server = find_server(place, setting)
    limits = {"socket_timeout": wait_seconds, "socket_connect_timeout": wait_seconds, "retry": Retry(NoBackoff(), 0)}
    pool = (server.pool_class or ConnectionPool).from_url(server.url, **server.options, **limits)
    client = Redis(connection_pool=pool)
    # As from_url() does: close() closes the connections of the pool, which nobody shares.
    client.auto_close_connection_pool = True
    return client
