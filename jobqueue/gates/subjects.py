"""Subjects: the numbers of what jobs wait for, and the wait_reason of those jobs."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

from jobqueue.conf.known_tasks import path_of

REASON_CHARS = 200
#: the code of pauses, and of breakers, in a wait_reason
PAUSED, _BREAKER = "paused ", "breaker "
#: the code of the slots of a whole task; those of one key have another
SLOT = "slot"


class Subject(NamedTuple):
    """Something that jobs wait for. Two with equal numbers, one pair in 10**19, would share their slots or tokens."""

    number: int
    wait_reason: str  # a code and its subject


def slot_subject(queue: str, task: str, key: bytes | None = None) -> Subject:
    """The slots of a task in a queue, or of one concurrency key there."""
    return _subject("slot", "key" if key is not None else SLOT, queue, task, key)


def rate_subject(queue: str, task: str, key: bytes | None = None) -> Subject:
    """The starts of a task in a queue, or of one concurrency key there."""
    return _subject("rate", "rate", queue, task, key)


def whole_queue_subject(queue: str) -> Subject:
    """The limits of a whole queue."""
    return Subject(_number("queue", queue), _cut(f"queue {queue}"))


def pause_subject(queue: str, task: str) -> Subject:
    """The pause of a task in a queue."""
    path = path_of(task)
    return Subject(_number("pause", queue, path), _cut(PAUSED + path))


def breaker_subject(dependency: str) -> Subject:
    """The circuit breaker of a dependency."""
    return Subject(_number("breaker", dependency), _cut(_BREAKER + dependency))


def dependency_named(wait_reason: str) -> str | None:
    """The dependency whose breaker a wait_reason is about; None if it is about something else."""
    return wait_reason.removeprefix(_BREAKER) if wait_reason.startswith(_BREAKER) else None


def readable_key(key: bytes) -> str:
    """A key as text: itself if it is printable UTF-8, else in hexadecimal."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _subject(kind: str, code: str, queue: str, task: str, key: bytes | None) -> Subject:
    if key is None:
        task = path_of(task)
        return Subject(_number(kind, queue, task), _cut(f"{code} {task}"))
    return _subject_of_key(kind, code, queue, key)


@lru_cache(maxsize=10_000)
def _subject_of_key(kind: str, code: str, queue: str, key: bytes) -> Subject:
    # Without the task: jobs of several tasks may share a key of their queue.
    return Subject(_number(f"{kind} of key", queue, key), _cut(f"{code} {readable_key(key)}"))


def _number(*names: str | bytes) -> int:
    """A number from 0 to 2**63 - 1. No name of ours contains a NUL but a key, which comes last."""
    parts = (name if isinstance(name, bytes) else name.encode() for name in names)
    return int.from_bytes(hashlib.sha256(b"\0".join(parts)).digest()[:8], "big") >> 1


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1] + "…"
