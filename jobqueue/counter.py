"""A counter that many transactions can raise at once, where one row would make them queue up."""

from __future__ import annotations

import random
import threading

from asgiref.sync import sync_to_async
from django.db.models import Sum

from jobqueue.base.validation import check_int, check_lock_name
from jobqueue.context.guards import refuse_transaction_elsewhere
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.retry import retry_transient
from jobqueue.db.upsert import upsert
from jobqueue.models import CounterShard

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

        def add() -> None:
            keys = ("counter_key", "shard")
            upsert(CounterShard, [(self.name, shard, n)], keys=keys, added="total", using=self.using)

        retry_transient("counter", add, using=self.using, repeatable=False)

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
