"""Seven ways to sell a serial number. Each answers one request with a number, or None when sold out."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from demo_project.serials.models import SerialNumber
from jobqueue.allocate import take

#: time between reading a free number and saving it as sold: prices, forms, other queries
THINK_SECONDS = 0.001
REDIS_LOCK_MS = 5000
REDIS_TRIES = 50
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Refused(Exception):
    """The buyer gets an error instead of an answer."""


@dataclass(frozen=True)
class Strategy:
    """`sell(request_id)` returns a number or None. `repeatable`: a repeated request gets its number again."""

    name: str
    sell: Callable[[str], str | None]
    needs_redis: bool = False
    repeatable: bool = False
    #: whether it claims to be safe; the race fails if it is not
    safe: bool = True
    #: whether it claims that no later request gets a lower number
    ordered: bool = False


def free() -> QuerySet[SerialNumber]:
    """Numbers for sale, lowest first. IN (false), because MySQL uses no index for NOT is_used."""
    return SerialNumber.objects.filter(is_used__in=[False]).order_by("id")


def unsafe(request_id: str) -> str | None:
    """Read, then save: in between, others read the same row."""
    return _sell(free().first(), request_id)


def row_lock(request_id: str) -> str | None:
    """SELECT ... FOR UPDATE: correct, but all buyers wait for each other."""
    with transaction.atomic():
        return _sell(free().select_for_update().first(), request_id)


def row_lock_skip(request_id: str) -> str | None:
    """SELECT ... FOR UPDATE SKIP LOCKED: no waits, but near the end it says sold out while rows are only locked."""
    with transaction.atomic():
        return _sell(free().select_for_update(skip_locked=True).first(), request_id)


def in_order(request_id: str) -> str | None:
    """All buyers lock one row first: numbers are sold in the order of the requests, one buyer at a time."""
    with transaction.atomic():
        # Locked until the end of the sale, so that a sale that is rolled back leaves no lower number to a later buyer.
        SerialNumber.objects.select_for_update().order_by("id").first()
        return _sell(free().first(), request_id)


def redis_lock(request_id: str) -> str | None:
    """A Redis lock per number, tried once: correct while the lock outlives the work; on a locked number it refuses."""
    number = free().first()
    if number is None:
        return None
    with _redis_locked(number.id) as mine:
        if not mine or not _still_free(number):
            raise Refused
        return _sell(number, request_id)


def redis_retry(request_id: str) -> str | None:
    """A Redis lock per number; it skips locked numbers."""
    locked: list[str] = []
    for _ in range(REDIS_TRIES):
        number = free().exclude(id__in=locked).first()
        if number is None:
            return None
        with _redis_locked(number.id) as mine:
            if mine and _still_free(number):
                return _sell(number, request_id)
        if not mine:
            locked.append(number.id)
    raise Refused


def allocate_take(request_id: str) -> str | None:
    """jobqueue.allocate.take: skips locked rows, waits before it says sold out, and remembers requests."""
    rows = take(free(), changes={"is_used": True, "used_by": request_id}, request_id=request_id)
    return rows[0].id if rows else None


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("unsafe", unsafe, safe=False),
        Strategy("row-lock", row_lock),
        Strategy("row-lock-skip", row_lock_skip),
        Strategy("in-order", in_order, ordered=True),
        Strategy("redis-lock", redis_lock, needs_redis=True),
        Strategy("redis-retry", redis_retry, needs_redis=True),
        Strategy("take", allocate_take, repeatable=True),
    )
}


def redis_missing() -> str | None:
    """The reason why the Redis strategies cannot run; None if they can."""
    if not settings.REDIS_URL:
        return "no REDIS_URL"
    try:
        _redis().ping()
    except ImportError:
        return "redis-py is not installed"
    except Exception as error:
        return f"no answer from REDIS_URL ({type(error).__name__})"
    return None


def _sell(number: SerialNumber | None, request_id: str) -> str | None:
    if number is None:
        return None
    time.sleep(THINK_SECONDS)
    number.is_used, number.used_by = True, request_id
    number.save(update_fields=["is_used", "used_by"])
    return number.id


def _still_free(number: SerialNumber) -> bool:
    return free().filter(id=number.id).exists()


@cache
def _redis() -> Any:
    import redis

    return redis.Redis.from_url(settings.REDIS_URL)


@contextmanager
def _redis_locked(number: str) -> Iterator[bool]:
    key, token = f"jobqueue-demo:serial:{number}", uuid.uuid4().hex
    mine = bool(_redis().set(key, token, nx=True, px=REDIS_LOCK_MS))
    try:
        yield mine
    finally:
        if mine:
            # Only our own lock: it may have expired and been acquired by another process.
            _redis().eval(_RELEASE, 1, key, token)
