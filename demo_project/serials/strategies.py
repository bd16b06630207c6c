"""Seven ways to sell a serial number. Each answers one request with a number, or None when sold out."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet

from demo_project.serials.models import SerialNumber
from jobqueue.allocate import take
from jobqueue.exceptions import LockLost, LockNotAcquired, StaleFence
from jobqueue.fencing import HasFence
from jobqueue.locks import redis_lock

#: time between reading a free number and saving it as sold: prices, forms, other queries
THINK_SECONDS = 0.001
REDIS_LOCK_SECONDS = 5
REDIS_TRIES = 50


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


def redis_once(request_id: str) -> str | None:
    """jobqueue.locks.redis_lock per number, tried once, with its fence; on a locked number it refuses."""
    number = free().first()
    if number is None:
        return None
    with _redis_locked(number) as lock:
        sold = _sell_fenced(number, request_id, lock) if lock else None
    if sold is None:
        raise Refused
    return sold


def redis_retry(request_id: str) -> str | None:
    """jobqueue.locks.redis_lock per number, with its fence; it skips locked numbers."""
    locked: list[str] = []
    for _ in range(REDIS_TRIES):
        number = free().exclude(id__in=locked).first()
        if number is None:
            return None
        with _redis_locked(number) as lock:
            sold = _sell_fenced(number, request_id, lock) if lock else None
        if sold is not None:
            return sold
        if lock is None:
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
        Strategy("redis-lock", redis_once, needs_redis=True),
        Strategy("redis-retry", redis_retry, needs_redis=True),
        Strategy("take", allocate_take, repeatable=True),
    )
}


def _sell(number: SerialNumber | None, request_id: str) -> str | None:
    if number is None:
        return None
    time.sleep(THINK_SECONDS)
    number.is_used, number.used_by = True, request_id
    number.save(update_fields=["is_used", "used_by"])
    return number.id


def _sell_fenced(number: SerialNumber, request_id: str, lock: HasFence) -> str | None:
    """Sell under the fence of `lock`; None if the number is not free any more.

    The first write stores the fence in the free row. A holder whose lock has expired meanwhile has a lower fence than
    the next one, so one of its two writes is refused: the lock may fail, and the number is still sold once.
    """
    row = SerialNumber.objects.filter(id=number.id)
    try:
        if not row.filter(is_used__in=[False]).fenced_update(lock):
            return None
        time.sleep(THINK_SECONDS)
        row.fenced_update(lock, is_used=True, used_by=request_id)
    except StaleFence:
        raise Refused from None
    return number.id


@contextmanager
def _redis_locked(number: SerialNumber) -> Iterator[HasFence | None]:
    """The lock on a number for a block; None if somebody else holds it."""
    try:
        lock = redis_lock(f"jobqueue-demo serial {number.id}", REDIS_LOCK_SECONDS, 0).acquire()
    except LockNotAcquired:
        yield None
        return
    try:
        yield lock
    finally:
        # If it has expired, the fence has decided who may sell.
        with suppress(LockLost):
            lock.release()
