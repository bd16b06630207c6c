"""A counter that many transactions can raise at once, where one row would make them queue up."""

from __future__ import annotations

import random
import threading

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.models import Sum

from jobqueue.context.single_database import refuse_transaction_elsewhere
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.parameters import placeholder
from jobqueue.db.retry import retry_transient
from jobqueue.models import CounterShard
from jobqueue.validation import check_int, check_lock_name

SHARDS_MAX = 1024
_ADD_MAX = 2**53


class _Here(threading.local):
    """A number of this thread's own: all its additions to a counter go to one row, so they lock one row."""

    def __init__(self) -> None:
        self.number = random.SystemRandom().randrange(SHARDS_MAX)


_here = _Here()


class ShardedCounter:
    """A 64-bit number of the name `name` (1-255 characters, exact), kept as the sum of up to `shards` rows.

    `shards` (1-1024) bounds how many can add at once; it may differ between callers and change at any time, nothing is
    lost. `using` defaults to JOBQUEUE["DATABASE"]. Raises InvalidType, InvalidValue.
    """

    def __init__(self, name: str, *, shards: int = 16, using: str | None = None) -> None:
        self.name = check_lock_name(name)
        self.shards = check_int(shards, "shards", 1, SHARDS_MAX)
        self.using = alias_of(using)
        self._named = using is not None

    def add(self, n: int = 1) -> None:
        """Add `n`, which may be negative; one statement. Part of the caller's transaction if there is one.

        There it locks one row until the commit: add late, and to several counters in one order. Outside it commits by
        itself, and raises OutcomeUnknown if the connection breaks before the answer. TransactionRequired inside a
        transaction of another database only, unless the counter was made with `using`.
        """
        check_int(n, "n", -_ADD_MAX, _ADD_MAX)
        if not self._named:
            refuse_transaction_elsewhere(self.using, "ShardedCounter.add()")
        shard = _here.number % self.shards
        retry_transient("counter", lambda: _add(self.name, shard, n, self.using), using=self.using, repeatable=False)

    def value(self) -> int:
        """The sum of what was committed, and of what the caller's transaction has added; 0 for a new counter."""
        rows = CounterShard.objects.using(self.using).filter(counter_key=self.name)
        with explain_missing_table(self.using):
            return int(rows.aggregate(sum=Sum("total"))["sum"] or 0)

    async def aadd(self, n: int = 1) -> None:
        """add() for coroutines."""
        await sync_to_async(self.add)(n)

    async def avalue(self) -> int:
        """value() for coroutines."""
        return await sync_to_async(self.value)()


def _add(name: str, shard: int, n: int, using: str) -> None:
    """Add `n` to one part of a counter, which is made if need be; one statement."""
    connection, dialect = connections[using], vendor(using)
    table, key = connection.ops.quote_name(CounterShard._meta.db_table), dialect.text_parameter(connection, name)
    sql = f"INSERT INTO {table} (counter_key, shard, total) VALUES ({placeholder(key)}, %s, %s) "
    sql += dialect.on_conflict_sql(table, "counter_key, shard", "total = {row}total + %s")
    with transaction.mark_for_rollback_on_error(using=using), connection.cursor() as cursor:
        cursor.execute(sql, [key, shard, n, n])
