"""The one place that imports redis-py."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured


def connect(url: str, wait_seconds: float, setting: str) -> Any:
    """A redis-py client for `url`, which connects when it is first used; `setting` is where the URL came from.

    Raises ImproperlyConfigured without redis-py. Commands and connecting take up to `wait_seconds`, and are not
    repeated: a ring that comes late is worth nothing, and a lock is asked for again by whoever waits for it.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ImproperlyConfigured(
            f'{setting} is a Redis URL and redis-py is not installed. Install it with: pip install "jobqueue[redis]"'
        ) from None
    return Redis.from_url(
        url, socket_timeout=wait_seconds, socket_connect_timeout=wait_seconds, retry=Retry(NoBackoff(), 0)
    )
