"""once(): a block that runs once per key, however often it is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from weakref import WeakSet

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction

from jobqueue.base.compat import Task
from jobqueue.base.payload import JSON, encode
from jobqueue.base.validation import KEY_BYTES, check_seconds
from jobqueue.conf import load
from jobqueue.context.guards import raise_swallowed_errors, refuse_transaction_elsewhere, refuse_writes_elsewhere
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InProgress, InvalidType, InvalidValue, KeyReused, NotSupported
from jobqueue.idempotency import records
from jobqueue.idempotency.records import Key, StoredKey, stored
from jobqueue.locks.deadline import Deadline
from jobqueue.models import IdempotencyRecord

F = TypeVar("F", bound=Callable[..., Any])

DAY_SECONDS = 86_400.0
WAIT_SECONDS = 10.0
_ADVICE = "name the database of the effect with using=, or do the rest behind the commit, with transaction.on_commit()"


def once(
    key: Key | Callable[..., Key],
    ttl_seconds: float = DAY_SECONDS,
    *,
    timeout_seconds: float = WAIT_SECONDS,
    fingerprint: bytes | None = None,
    using: str | None = None,
) -> Once:
    """Run the block once per `key` (str, bytes, int, UUID or a tuple of them) within `ttl_seconds` of its beginning.

        with once(("refund", order_id)) as o:
            if o.done:
                return o.result
            o.result = refund(order_id)

    The record is written in the caller's transaction, or in one of the block's own: effect and record are committed
    together, and an error in the block undoes both. A repeat finds `done` set, and the stored `result` (JSON). While
    another caller is in the block, it waits up to timeout_seconds (0: not at all; MySQL and MariaDB count whole
    seconds), then raises InProgress; the caller's transaction can go on. Raises KeyReused for another `fingerprint`
    (1-64 bytes) under the same key. For a decorator, `key` may be a function of the decorated function's arguments.
    Raises InvalidValue, InvalidType; PayloadError, PayloadTooLarge for the result, which undo the block; DatabaseBusy,
    and on SQLite StaleSnapshot.

    Effect and record share a commit only on one database, `using` (JOBQUEUE["DATABASE"]). Raises TransactionRequired if
    a transaction is open on another database and none on `using`; WrongDatabase before the block writes to another one.
    """
    return Once(key, ttl_seconds, timeout_seconds, fingerprint, using)


class _Block(threading.local):
    """The state of one thread's block: many threads may enter an object at module level."""

    done = False
    result: JSON = None
    alias: str
    leave: Callable[[BaseException | None], None]
    guards: ExitStack


class Once:
    """A block under once(): whether it was done before, and its result. Threads may share the object."""

    def __init__(
        self,
        key: Key | Callable[..., Key],
        ttl_seconds: float,
        timeout_seconds: float,
        fingerprint: bytes | None,
        using: str | None,
    ) -> None:
        self._key = None if callable(key) else stored(key)
        self._of_arguments = key if callable(key) else None
        self._ttl_seconds = check_seconds(ttl_seconds, "ttl_seconds")
        self._timeout_seconds = check_seconds(timeout_seconds, "timeout_seconds", zero=True)
        self._fingerprint = _check_fingerprint(fingerprint)
        self._using = using
        self._block = _Block()

    @property
    def done(self) -> bool:
        """True if the effect has happened before: return `result` and do nothing."""
        return self._block.done

    @property
    def result(self) -> JSON:
        """The result that a repeat gets; set it in the block."""
        return self._block.result

    @result.setter
    def result(self, value: JSON) -> None:
        self._block.result = value

    def __enter__(self) -> Self:
        if self._key is None:
            raise InvalidType(
                "once(): a key that is a function of arguments is for the decorator. Nothing was written."
            )
        alias, block = alias_of(self._using), self._block
        refuse_transaction_elsewhere(alias, "once()")
        if any(around._key == self._key for around in _entered(alias)):
            # Its record is in this transaction, so this call would find it done.
            raise InProgress(
                f"{self._key.label!r} is being worked on by a block around this one. Nothing was written; "
                "a call within it needs a key of its own."
            )
        block.alias, block.done, block.result = alias, False, None
        # The block has not begun, so the beginning can be redone as a whole.
        deadline = Deadline(self._timeout_seconds)
        found = retry_transient("once", lambda: self._begin(alias, deadline), using=alias)
        if found is not None:
            block.leave(None)
            if self._fingerprint is not None and found.fingerprint != self._fingerprint:
                raise KeyReused(
                    f"{found.label!r} was used for another request before. Nothing was written; use a new key."
                )
            block.done, block.result = True, found.result
        else:
            _entered(alias).add(self)
            block.guards = ExitStack()
            block.guards.enter_context(raise_swallowed_errors(alias))
            block.guards.enter_context(refuse_writes_elsewhere(alias, "once()", advice=_ADVICE, locks=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.done:
            return
        block, alias = self._block, self._block.alias
        _entered(alias).discard(self)
        try:
            # Raises if the transaction is undone although the block raised nothing.
            block.guards.__exit__(kind, error, trace)
            if kind is None and not transaction.get_rollback(using=alias):
                assert self._key is not None
                records.complete(self._key, self._encoded(), using=alias)
        except BaseException as failed:
            block.leave(failed)
            raise
        block.leave(error)

    def __call__(self, func: F) -> F:
        """Use it as a decorator: func(...) runs once, repeats get its first result."""
        if not callable(func) or isinstance(func, Task):
            raise InvalidType(f"@once decorates a function, got {type(func).__name__}.")
        if iscoroutinefunction(func):
            raise NotSupported("@once is for functions; use a with block inside one that sync_to_async calls.")

        @wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            key = self._key if self._of_arguments is None else stored(self._of_arguments(*args, **kwargs))
            # One object per call: threads and nested calls share nothing.
            with self._for(key) as again:
                if not again.done:
                    again.result = func(*args, **kwargs)
            return again.result

        return cast("F", call)

    def _for(self, key: StoredKey | None) -> Once:
        own = Once("unused", self._ttl_seconds, self._timeout_seconds, self._fingerprint, self._using)
        own._key = key
        return own

    def _begin(self, alias: str, deadline: Deadline) -> IdempotencyRecord | None:
        # Only a transaction of our own can be rolled back and begun again; once is enough.
        if not in_callers_transaction(connections[alias]):
            with suppress(records.Lapsed):
                return self._begin_once(alias, deadline, may_redo=True)
        return self._begin_once(alias, deadline, may_redo=False)

    def _begin_once(self, alias: str, deadline: Deadline, *, may_redo: bool) -> IdempotencyRecord | None:
        connection = connections[alias]
        own = vendor(alias).transaction(connection)
        assert self._key is not None
        if not vendor(alias).locks.begin_within(connection, own, deadline.left_seconds() or 0.0):
            raise records.in_progress(self._key)
        self._block.leave = partial(_leave, own)
        try:
            return records.begin(
                self._key,
                deadline,
                ttl_seconds=self._ttl_seconds,
                fingerprint=self._fingerprint,
                using=alias,
                may_redo=may_redo,
            )
        except BaseException as error:
            self._block.leave(error)
            raise

    def _encoded(self) -> Encoded | None:
        if self.result is None:
            return None
        size = load().max_result_bytes
        return Encoded(encode(self.result, max_bytes=size, setting="MAX_RESULT_BYTES", what="result"))


def _entered(alias: str) -> WeakSet[Once]:
    """The blocks of this connection that have begun and not ended."""
    found: WeakSet[Once] = connections[alias].__dict__.setdefault("jobqueue_once", WeakSet())
    return found


def _check_fingerprint(fingerprint: object) -> bytes | None:
    if fingerprint is None or (isinstance(fingerprint, bytes) and 1 <= len(fingerprint) <= KEY_BYTES):
        return fingerprint
    if not isinstance(fingerprint, bytes):
        raise InvalidType(f"fingerprint must be bytes, got {type(fingerprint).__name__}. Nothing was written.")
    raise InvalidValue(
        f"fingerprint has {len(fingerprint)} bytes; allowed are 1 to {KEY_BYTES}. Nothing was written; hash it."
    )


def _leave(block: AbstractContextManager[None], error: BaseException | None) -> None:
    """End the block's transaction; the caller raises the block's own error."""
    kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
    try:
        block.__exit__(kind, error, trace)
    except BaseException as raised:
        if raised is not error:
            raise
