"""once(): an effect that happens once, however often it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidType, KeyReused, NotSupported, PayloadError
from jobqueue.idempotency import records
from jobqueue.idempotency.keys import Key, stored
from jobqueue.names import check_seconds
from jobqueue.payload import JSON, encode

F = TypeVar("F", bound=Callable[..., Any])

DAY_SECONDS = 86_400.0
WAIT_SECONDS = 10.0


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
        self._fingerprint = fingerprint
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
        alias = self._alias = self._using or load().database
        # Nothing of the caller's has been done yet, so the beginning can be redone as a whole.
        found = retry_transient(self._begin, using=alias)
        if found is not None:
            self._leave(None, None, None)
            if self._fingerprint is not None and found.fingerprint != self._fingerprint:
                raise KeyReused(
                    f"{found.label!r} was used for another request before. Nothing was written; use a new key."
                )
            self.done, self.result = True, found.result
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.done:
            return
        if kind is not None or transaction.get_rollback(using=self._alias):
            self._leave(kind, error, trace)
            return
        try:
            assert self._key is not None
            records.complete(self._key, self._encoded(), using=self._alias)
        except BaseException as failed:
            self._leave(type(failed), failed, failed.__traceback__)
            raise
        self._leave(None, None, None)

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

    def _begin(self) -> Any:
        connection = connections[self._alias]
        block = vendor(self._alias).transaction(connection)
        assert self._key is not None
        if not vendor(self._alias).begin_within(connection, block, self._timeout_seconds):
            raise records.in_progress(self._key)
        self._leave = partial(_leave, block)
        try:
            return records.begin(
                self._key,
                ttl_seconds=self._ttl_seconds,
                timeout_seconds=self._timeout_seconds,
                fingerprint=self._fingerprint,
                using=self._alias,
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


def _leave(block: Any, kind: Any, error: Any, trace: Any) -> None:
    """End the block's transaction; an error that is passed on is raised again by whoever passed it."""
    try:
        block.__exit__(kind, error, trace)
    except BaseException as raised:
        if raised is not error:
            raise
