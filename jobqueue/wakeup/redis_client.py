"""A client of redis-py for a Redis server: a URL, or "cache:ALIAS" for an entry of Django's CACHES."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import import_string

from jobqueue.base.validation import did_you_mean, is_redis_url
from jobqueue.conf.rules import CACHE_PREFIX
from jobqueue.exceptions import WrongSettings

if TYPE_CHECKING:
    from redis import ConnectionPool
if TYPE_CHECKING:
    from redis import Redis


DJANGO, DJANGO_REDIS = "django.core.cache.backends.redis", "django_redis.cache"
#: What the entry says about the values and the pool of the cache, and what waits in our own way.
_OF_THE_CACHE = {
    *("serializer", "pool_class", "parser_class", "max_connections", "decode_responses", "single_connection_client"),
    *("socket_timeout", "socket_connect_timeout", "retry", "retry_on_timeout", "retry_on_error"),
}


@dataclass(frozen=True)
class RedisServer:
    """The arguments of `pool_class.from_url()`; None: redis-py's own pool."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    pool_class: type[ConnectionPool] | None = None


def find_server(place: str, setting: str) -> RedisServer:
    """The server at `place`: a Redis URL, or "cache:ALIAS", which `setting` holds.

    Of a cache with several locations it is the first, the one that Django writes to. Raises WrongSettings if the alias
    is unknown, if the cache is not on Redis, or if it finds its server in a way that is not known here.
    """
    if not place.startswith(CACHE_PREFIX):
        return RedisServer(place)
    alias = place.removeprefix(CACHE_PREFIX)
    try:
        return _of_entry(alias)
    except _Unfit as error:
        raise WrongSettings(
            f"{setting} = {place!r}: {error}. Name an alias of CACHES with Django's RedisCache or that of "
            "django-redis, or a redis:// URL."
        ) from None


class _Unfit(Exception):
    """Why an entry of CACHES cannot be used."""


def _of_entry(alias: str) -> RedisServer:
    entry = settings.CACHES.get(alias)
    if entry is None:
        raise _Unfit(f"CACHES has no {alias!r}{did_you_mean(alias, settings.CACHES)}")
    where = f"CACHES[{alias!r}]"
    origin = _origin(entry, where)
    options = dict(entry.get("OPTIONS") or {})
    if origin == DJANGO_REDIS:
        options = _as_for_django(options, where)
    pool_class, parser_class = (_loaded(options.get(name), where) for name in ("pool_class", "parser_class"))
    if pool_class is not None and any(kind.__module__ == "redis.sentinel" for kind in pool_class.__mro__):
        raise _Unfit(f"{where} asks Sentinel for its server, which locks and wake-ups cannot do")
    kept = {name: value for name, value in options.items() if name not in _OF_THE_CACHE}
    if parser_class is not None:
        kept["parser_class"] = parser_class
    return RedisServer(_first_location(entry, where), kept, pool_class)


def _origin(entry: Mapping[str, Any], where: str) -> str:
    """The module of the Redis cache that the backend is or inherits from."""
    backend = _loaded(entry.get("BACKEND", ""), where)
    kinds = [f"{kind.__module__}.{kind.__name__}" for kind in getattr(backend, "__mro__", ())]
    for module in (DJANGO, DJANGO_REDIS):
        if f"{module}.RedisCache" in kinds:
            return module
    raise _Unfit(f"{where} is not on Redis, its BACKEND is {entry.get('BACKEND')!r}")


def _loaded(name: Any, where: str) -> Any:
    if not isinstance(name, str):
        return name
    try:
        return import_string(name)
    except ImportError as error:
        raise _Unfit(f"{where} names {name!r}, which cannot be imported ({error})") from None


def _first_location(entry: Mapping[str, Any], where: str) -> str:
    location = entry.get("LOCATION") or ""
    places = re.split(r"[;,]\s*", location) if isinstance(location, str) else list(location)
    if not places or not is_redis_url(places[0]):
        # Without its value, which may hold a password.
        raise _Unfit(f"the first LOCATION of {where} is no redis://, rediss:// or unix:// URL")
    return str(places[0])


def _as_for_django(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """OPTIONS of django-redis as those of Django's RedisCache."""
    factory = options.get("CONNECTION_FACTORY") or getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None)
    if options.get("SENTINELS") or factory not in (None, "django_redis.pool.ConnectionFactory"):
        raise _Unfit(f"{where} finds its server by Sentinel or by a CONNECTION_FACTORY, which is not known here")
    found = dict(options.get("CONNECTION_POOL_KWARGS") or {})
    if options.get("PASSWORD"):
        found.setdefault("password", options["PASSWORD"])
    found["pool_class"], found["parser_class"] = options.get("CONNECTION_POOL_CLASS"), options.get("PARSER_CLASS")
    return found


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
