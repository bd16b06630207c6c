"""The types of the fields of @task and using()."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias, TypedDict

from jobqueue.backoff import Wait

#: a key, or a function of the task's arguments that returns one (or None: no key)
DedupeKey: TypeAlias = str | bytes | Callable[..., str | bytes | None]
OrderingKey: TypeAlias = DedupeKey
#: seconds from the moment it is due, or an instant
Expires: TypeAlias = float | timedelta | datetime
Errors: TypeAlias = type[BaseException] | Sequence[type[BaseException]]


class _Fields(TypedDict, total=False):
    max_attempts: int | None
    backoff: Wait | None
    retry_on: Errors | None
    no_retry_on: Errors | None
    retry_until_seconds: float | timedelta | str | None
    move_after: int | None
    move_to: str | None
    dependency: str | None
    result_ttl_seconds: float | timedelta | str | None
    lease_seconds: float | None
    timeout_seconds: float | None
    hard_timeout_seconds: float | None
    dedupe_key: DedupeKey | None
    unique: Literal["waiting", "unfinished"] | None
    unique_seconds: float | timedelta | str | None
    on_conflict: Literal["keep", "replace"] | None
    tags: Sequence[str] | None
    ordering_key: OrderingKey | None
    concurrency_key: DedupeKey | None
    expires: Expires | None


class UsingFields(_Fields, total=False):
    """The fields of using(); None leaves a field unchanged."""

    priority: int | None
    queue_name: str | None
    run_after: datetime | None
    backend: str | None
    ack_each: bool | None


class TaskFields(_Fields, total=False):
    """The fields of @task besides takes_context."""

    queue_name: str
    priority: int
    backend: str
    ack_each: bool
    on_crash: Literal["retry", "fail", "hold"]
    concurrency_limit: int | None
    rate_limit: str | None
    version: int
    aliases: Sequence[str]
    causes: Mapping[str, str]
