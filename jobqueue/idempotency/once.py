"""once(): an effect that happens once, however often it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from weakref import WeakSet

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.fields import Encoded
from jobqueue.db.open_transaction import in_callers_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.db.unswallowed import unswallowed
from jobqueue.elsewhere import refuse_transaction_elsewhere, refuse_writes_elsewhere
from jobqueue.exceptions import InProgress, InvalidType, InvalidValue, KeyReused, NotSupported, PayloadError
from jobqueue.idempotency import records
from jobqueue.idempotency.keys import Key, stored
from jobqueue.locks.patience import Patience
from jobqueue.names import KEY_BYTES, check_seconds
from jobqueue.payload import JSON, encode

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
    """Do the block once per `key` (str, bytes, int, UUID or a tuple of them) within `ttl_seconds` of its begin.

        with once(("refund", order_id)) as o:
            if o.done:
                return o.result
            o.result = refund(order_id)

    The record is written in the caller's transaction, or in one that the block makes: effect and record are committed
    together, and an error in the block undoes both. A repeat finds `done`, and the stored `result` (JSON). While
    somebody else is in the block it waits up to timeout_seconds (0: not at all; MySQL and MariaDB count whole seconds),
    then InProgress is raised; the caller's transaction can go on. Another `fingerprint` (1-64 bytes) under the same
    key: KeyReused. As a decorator, `key` may be a function of the decorated function's arguments. Raises InvalidValue,
    InvalidType; PayloadError, PayloadTooLarge for the result, which undo the block; DatabaseBusy.

    Effect and record share a commit only on one database, `using` (JOBQUEUE["DATABASE"]). TransactionRequired, if a
    transaction is open on another one and none on it; WrongDatabase before the block writes to another one.
    """
    return Once(key, ttl_seconds, timeout_seconds, fingerprint, using)


class Once:
    """What a block under once() knows: whether it was done before, and the result."""

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
        #: the effect has happened before: return `result`, do nothing
        self.done = False
        #: set it in the block; what a repeat gets
        self.result: JSON = None

    def __enter__(self) -> Self:
        if self._key is None:
            raise InvalidType(
                "once(): a key that is a function of arguments is for the decorator. Nothing was written."
            )
        alias = self._alias = alias_of(self._using)
        refuse_transaction_elsewhere(alias, "once()")
        self.done, self.result = False, None
        if any(around._key == self._key for around in _entered(alias)):
            # Its record is in this transaction and would look as if it had been done.
            raise InProgress(
                f"{self._key.label!r} is being worked on by a block around this one. Nothing was written; "
                "a call within it needs a key of its own."
            )
        # Nothing of the caller's has been done yet, so the beginning can be redone as a whole.
        patience = Patience(self._timeout_seconds)
        found = retry_transient(lambda: self._begin(patience), using=alias)
        if found is not None:
            self._leave(None, None, None)
            if self._fingerprint is not None and found.fingerprint != self._fingerprint:
                raise KeyReused(
                    f"{found.label!r} was used for another request before. Nothing was written; use a new key."
                )
            self.done, self.result = True, found.result
        else:
            _entered(alias).add(self)
            self._guards = ExitStack()
            self._guards.enter_context(unswallowed(alias))
            self._guards.enter_context(refuse_writes_elsewhere(alias, "once()", advice=_ADVICE, locks=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.done:
            return
        _entered(self._alias).discard(self)
        try:
            # An effect that is undone all the same must not look as if it had happened.
            self._guards.__exit__(kind, error, trace)
            if kind is None and not transaction.get_rollback(using=self._alias):
                assert self._key is not None
                records.complete(self._key, self._encoded(), using=self._alias)
        except BaseException as failed:
            self._leave(type(failed), failed, failed.__traceback__)
            raise
        self._leave(kind, error, trace)

    def __call__(self, func: F) -> F:
        """The decorator: func(...) is done once, repeats get what it returned."""
        if iscoroutinefunction(func):
            raise NotSupported("@once is for functions; use a with block inside one that sync_to_async calls.")

        @wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            key = self._key if self._of_arguments is None else stored(self._of_arguments(*args, **kwargs))
            # One object per call: threads, and calls within calls, share nothing.
            with self._for(key) as again:
                if not again.done:
                    again.result = func(*args, **kwargs)
            return again.result

        return cast("F", call)

    def _for(self, key: Any) -> Once:
        own = Once("unused", self._ttl_seconds, self._timeout_seconds, self._fingerprint, self._using)
        own._key = key
        return own

    def _begin(self, patience: Patience) -> Any:
        # Only a transaction of our own may be left and begun again, and once is enough.
        if not in_callers_transaction(connections[self._alias]):
            with suppress(records.Lapsed):
                return self._begin_once(patience, may_redo=True)
        return self._begin_once(patience, may_redo=False)

    def _begin_once(self, patience: Patience, *, may_redo: bool) -> Any:
        connection = connections[self._alias]
        block = vendor(self._alias).transaction(connection)
        assert self._key is not None
        if not vendor(self._alias).begin_within(connection, block, patience.left_seconds() or 0.0):
            raise records.in_progress(self._key)
        self._leave = partial(_leave, block)
        try:
            return records.begin(
                self._key,
                patience,
                ttl_seconds=self._ttl_seconds,
                fingerprint=self._fingerprint,
                using=self._alias,
                may_redo=may_redo,
            )
        except BaseException as error:
            self._leave(type(error), error, error.__traceback__)
            raise

    def _encoded(self) -> Encoded | None:
        if self.result is None:
            return None
        try:
            size = load().max_result_bytes
            return Encoded(encode(self.result, max_bytes=size, setting="MAX_RESULT_BYTES", what="result"))
        except RecursionError:
            raise PayloadError("result refers to itself. Nothing was written.") from None


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


def _leave(block: Any, kind: Any, error: Any, trace: Any) -> None:
    """End the block's transaction; an error that is passed on is raised again by whoever passed it."""
    try:
        block.__exit__(kind, error, trace)
    except BaseException as raised:
        if raised is not error:
            raise
