"""Ways to exclude others from one (product, size) while a rule reads, thinks and writes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from demo_project.auction.models import Offer
from demo_project.demo.redis_there import redis_missing
from jobqueue.locks import mutex, named_lock, redis_lock
from jobqueue.transactions import retry_transaction

WAIT_SECONDS = 20
TTL_SECONDS = 20
Guard = Callable[[str, str, Callable[[], Any]], Any]


@dataclass(frozen=True)
class Strategy:
    """`guard(product, size, work)` runs `work` under its lock and returns its value."""

    name: str
    guard: Guard
    #: whether it claims to keep the rules; the race fails if it does not
    safe: bool
    indexed: bool = True
    #: databases (connection.vendor) on which it cannot run
    missing_on: tuple[str, ...] = ()
    needs_redis: bool = False


def none(product: str, size: str, work: Callable[[], Any]) -> Any:
    """No lock; each statement commits by itself."""
    return work()


def row_lock(product: str, size: str, work: Callable[[], Any]) -> Any:
    """SELECT ... FOR UPDATE of the existing offers: without offers nothing is locked."""

    @retry_transaction(attempts=20)
    def locked() -> Any:
        # Without an index, this locks every row of the table for a moment.
        list(Offer.objects.of(product, size).order_by("pk").select_for_update().values_list("pk", flat=True))
        return work()

    return locked()


def gap_lock(product: str, size: str, work: Callable[[], Any]) -> Any:
    """The same at REPEATABLE READ, where InnoDB locks gaps too. Two sessions may lock a gap and deadlock on INSERT."""

    @retry_transaction(attempts=100)
    def locked() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT @@transaction_isolation" if not connection.mysql_is_mariadb else "SELECT @@tx_isolation"
            )
            assert cursor.fetchone()[0] == "REPEATABLE-READ"
        list(Offer.objects.of(product, size).order_by("pk").select_for_update().values_list("pk", flat=True))
        return work()

    with _repeatable_read():
        return locked()


def mutex_rows(product: str, size: str, work: Callable[[], Any]) -> Any:
    """jobqueue.locks.mutex: a row lock for (product, size) that works without offers too."""

    @retry_transaction
    def locked() -> Any:
        mutex("auction", product, size)
        return work()

    return locked()


def named(product: str, size: str, work: Callable[[], Any]) -> Any:
    """jobqueue.locks.named_lock around the transaction: released after the commit."""
    with named_lock(f"auction {product} {size}", WAIT_SECONDS), transaction.atomic():
        return work()


def redis(product: str, size: str, work: Callable[[], Any]) -> Any:
    """jobqueue.locks.redis_lock around the transaction."""
    with redis_lock(f"auction {product} {size}", TTL_SECONDS, WAIT_SECONDS), transaction.atomic():
        return work()


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("none", none, safe=False),
        Strategy("row-lock", row_lock, safe=False, indexed=False),
        Strategy("row-lock-index", row_lock, safe=False),
        Strategy("gap-lock", gap_lock, safe=True, missing_on=("sqlite", "postgresql")),
        Strategy("mutex", mutex_rows, safe=True),
        Strategy("named-lock", named, safe=True, missing_on=("sqlite",)),
        Strategy("redis-lock", redis, safe=True, needs_redis=True),
    )
}


def reason_not_to_run(strategy: Strategy) -> str:
    """The reason why it cannot run here; "" if it can."""
    if connection.vendor in strategy.missing_on:
        return f"{connection.display_name} has no {'gap' if strategy.name == 'gap-lock' else 'named'} locks"
    return redis_missing() if strategy.needs_redis else ""


@contextmanager
def _repeatable_read() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        try:
            yield
        finally:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
