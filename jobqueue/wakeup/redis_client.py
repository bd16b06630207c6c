"""The only module that imports redis-py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobqueue.exceptions import WrongSettings

if TYPE_CHECKING:
    from redis import Redis


def connect(url: str, wait_seconds: float, setting: str) -> Redis:
    """A redis-py client for `url`, which connects on first use. `setting` names the setting that holds the URL.

    Raises WrongSettings without redis-py. `wait_seconds` limits connecting and each command. Commands are not
    retried: a late wake-up is worthless, and the caller of a lock retries by itself.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise WrongSettings(
            f'{setting} is a Redis URL and redis-py is not installed. Install it with: pip install "jobqueue[redis]"'
        ) from None
    return Redis.from_url(
        url, socket_timeout=wait_seconds, socket_connect_timeout=wait_seconds, retry=Retry(NoBackoff(), 0)
    )
