"""Checks of arguments: which queue names, keys, numbers and instants may be stored, equally on every database."""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypeGuard
from urllib.parse import urlsplit

from jobqueue.exceptions import InvalidType, InvalidValue

QUEUE_BYTES = 64
KEY_BYTES = 64
WORKER_CHARS = 128
TASK_CHARS = 255
LOCK_CHARS = 255
TOPIC_CHARS = 255
INT_MAX = 2**31 - 1
#: of why an operator did something, in words
REASON_CHARS = 200
# More than a year is a mistake of units. On MySQL, NOW + a huge interval is NULL, a lease that is never reaped.
SECONDS_MAX = 366 * 86400
#: control characters, and what names of queues or topics stand between or begin with in commands
_NOT_IN_QUEUE, _NOT_IN_TOPIC = re.compile(r"^-|[,:*\x00-\x1f\x7f-\x9f]"), re.compile(r"[,*\x00-\x1f\x7f-\x9f]")
#: Python 3.14 and later evaluate annotations when they are read, and fail at names that type checkers alone import
AS_WRITTEN: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    AS_WRITTEN["annotation_format"] = Format.STRING


class _Keep(Enum):
    KEEP = "KEEP"


#: the argument for what stays as it is, where None has a meaning of its own
KEEP: Final = _Keep.KEEP
Kept: TypeAlias = Literal[_Keep.KEEP]


def check_queue(queue: object) -> str:
    """`queue` if it is a queue name: 1-64 bytes of UTF-8, no leading '-', none of , : * and control characters."""
    name = check_text(queue, "queue")
    size = len(name.encode())
    if not 1 <= size <= QUEUE_BYTES:
        raise InvalidValue(
            f"queue {name[:20]!r} has {size} bytes; allowed are 1 to {QUEUE_BYTES}. Nothing was written."
        )
    if _NOT_IN_QUEUE.search(name):
        raise InvalidValue(
            f"queue {name!r} may not start with '-' or contain ',', ':', '*' or control characters. "
            "Nothing was written; choose another name."
        )
    return name


def check_list(values: object, what: str, kind: type) -> None:
    """Raise InvalidType unless `values` is of `kind` and could have a value for each job."""
    # Text is a sequence too, of its characters.
    if not isinstance(values, kind) or isinstance(values, (str, bytes, bytearray, memoryview, dict)):
        raise InvalidType(f"{what} must be a list, one for each job, got {type(values).__name__}. Nothing was written.")


def check_key(key: object, what: str = "dedupe_key") -> bytes:
    """The bytes of a key: str as UTF-8, bytes as they are; 1 to 64 bytes, compared byte for byte."""
    if isinstance(key, str):
        raw = _utf8(key, what)
    elif isinstance(key, (bytes, bytearray, memoryview)):
        raw = bytes(key)
    else:
        raise InvalidType(f"{what} must be str or bytes, got {type(key).__name__}. Nothing was written.")
    if not 1 <= len(raw) <= KEY_BYTES:
        raise InvalidValue(
            f"{what} has {len(raw)} bytes; allowed are 1 to {KEY_BYTES}. Nothing was written; hash longer keys."
        )
    return raw


def readable_key(key: bytes) -> str:
    """A stored key as text; bytes that are not UTF-8 become escapes such as \\xff."""
    return key.decode("utf-8", "backslashreplace")


def check_int(value: object, what: str, low: int, high: int = INT_MAX) -> int:
    """`value` if it is an int (not a bool) within low..high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"{what} must be an int, got {type(value).__name__}. Nothing was written.")
    if not low <= value <= high:
        raise InvalidValue(f"{what} is {shown(value)}; allowed are {low} to {high}. Nothing was written.")
    return int(value)


def check_seconds(value: object, what: str, *, zero: bool = False) -> float:
    """`value` as seconds: a finite number above 0 (or at least 0 with `zero`) and at most about a year."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(f"{what} must be a number of seconds, got {type(value).__name__}. Nothing was written.")
    low_ok = value >= 0 if zero else value > 0
    # In this order, so that neither NaN nor an int beyond every float reaches isfinite().
    if not (low_ok and value <= SECONDS_MAX and math.isfinite(value)):
        bound = "at least 0" if zero else "above 0"
        raise InvalidValue(
            f"{what} is {shown(value)}; it must be {bound} and at most {SECONDS_MAX}. Nothing was written."
        )
    return float(value)


def check_instant(value: object, what: str = "run_at") -> datetime:
    """`value` in UTC if it is an aware datetime that every database can store."""
    if not isinstance(value, datetime):
        raise InvalidType(f"{what} must be an aware datetime, got {type(value).__name__}. Nothing was written.")
    if value.utcoffset() is None:
        raise InvalidValue(
            f"{what} {value} is naive, so its instant is unknown. Nothing was written; "
            "use datetime.now(UTC) + timedelta(...), or django.utils.timezone.make_aware()."
        )
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        utc = datetime.min.replace(tzinfo=UTC)
    if not 1000 <= utc.year <= 9998:
        raise InvalidValue(f"{what} {value} is outside the years 1000 to 9998. Nothing was written.")
    return utc


def is_redis_url(value: object) -> TypeGuard[str]:
    """Return whether `value` is a redis://, rediss:// or unix:// URL that names a host or a socket."""
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        located = parts.port != 0 and bool(parts.path if parts.scheme == "unix" else parts.hostname)
    except ValueError:
        return False
    return parts.scheme in ("redis", "rediss", "unix") and located


def check_worker(name: object) -> str:
    """`name` if it can be stored as locked_by: 1 to 128 printable characters."""
    worker = check_text(name, "worker")
    if not 1 <= len(worker) <= WORKER_CHARS or not worker.isprintable():
        raise InvalidValue(f"worker {worker[:40]!r} must be 1 to {WORKER_CHARS} printable characters.")
    return worker


def check_lock_name(name: object) -> str:
    """`name` if it names a lock: 1 to 255 characters, compared byte for byte."""
    lock = check_text(name, "the name of a lock")
    if not 1 <= len(lock) <= LOCK_CHARS:
        raise InvalidValue(
            f"the name of a lock has {len(lock)} characters; allowed are 1 to {LOCK_CHARS}. Nothing was locked; "
            "hash longer names."
        )
    return lock


def check_topic(topic: object) -> str:
    """`topic` if it names a kind of event: 1 to 255 characters, no '*', ',' or control characters, byte for byte."""
    name = check_text(topic, "topic")
    if not 1 <= len(name) <= TOPIC_CHARS:
        raise InvalidValue(f"topic {name[:20]!r} must have 1 to {TOPIC_CHARS} characters. Nothing was written.")
    if _NOT_IN_TOPIC.search(name):
        raise InvalidValue(
            f"topic {name!r} may not contain ',', '*' or control characters. Nothing was written; choose another name."
        )
    return name


TAG_CHARS = 64


def check_tag(tag: object) -> str:
    """`tag` if it can be stored. Raises InvalidType and InvalidValue."""
    if not isinstance(tag, str):
        raise InvalidType(f"a tag must be a str, got {type(tag).__name__}. Nothing was written.")
    if not 1 <= len(tag) <= TAG_CHARS or not tag.isprintable() or tag != tag.strip():
        raise InvalidValue(
            f"the tag {tag[:80]!r} is refused. Nothing was written; a tag has 1 to {TAG_CHARS} printable characters, "
            "and no space at its ends."
        )
    return tag


def check_id(number: object, what: str = "a job id") -> int:
    """The int of an id given as int or as its decimal str."""
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) <= 20:
        return int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidType(f"{what} is an int or its decimal str, got {str(number)[:40]!r}. Nothing was written.")
    return number


#: ids of one list
IDS_MAX = 10_000


def check_ids(given: object) -> list[int]:
    """The ids of a list, in order and each once. Raises InvalidValue, InvalidType."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidType(f"job_ids must be a list of job ids, got {type(given).__name__}. Nothing was written.")
    ids = sorted({check_id(job_id) for job_id in given})
    if len(ids) > IDS_MAX:
        raise InvalidValue(
            f"job_ids has {len(ids)} ids, {IDS_MAX} are the most. Nothing was written; choose them in another way, "
            "or call it for a part of them."
        )
    return ids


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """ " (did you mean 'X'?)" with the word of `known` nearest to `word`, whatever their case; "" if none is near."""
    given, by_lower = str(word).lower(), {name.lower(): name for name in known}
    longer = [name for name in by_lower if len(given) > 2 and name.startswith(given)]
    near = [*get_close_matches(given, by_lower, n=1, cutoff=0.7), *sorted(longer)]
    return f" (did you mean {by_lower[near[0]]!r}?)" if near else ""


def signature_of(func: Callable[..., object], *, follow_wrapped: bool = False) -> inspect.Signature | None:
    """The parameters of `func`, with annotations that are not evaluated; None if they cannot be known."""
    try:
        return inspect.signature(func, follow_wrapped=follow_wrapped, **AS_WRITTEN)
    except Exception:  # a __signature__ of the project may raise anything
        return None


def shown(value: float) -> str:
    """A number for a message."""
    # Python refuses to print ints of thousands of digits.
    return str(value) if not isinstance(value, int) or abs(value) < 10**40 else "an int of more than 40 digits"


def check_text(value: object, what: str) -> str:
    """`value` if it is a str that every database can store."""
    if not isinstance(value, str):
        raise InvalidType(f"{what} must be a str, got {type(value).__name__}. Nothing was written.")
    _utf8(value, what)
    # A plain str: a SafeString would skip escaping when it is shown.
    return str.__str__(value)


def check_group_name(name: object, what: str) -> str:
    """The name of `what`, a group, a workflow or a node, without the spaces around it."""
    words = check_text(name, "name").strip()
    if not 1 <= len(words) <= 255 or not words.isprintable():
        raise InvalidValue(
            f"the name of a {what} has 1 to 255 printable characters, got {words!r:.60}. Nothing was written."
        )
    return words


def check_reason(reason: object) -> str:
    """`reason` if it is a text of 1 to REASON_CHARS characters, without the spaces around it."""
    words = check_text(reason, "reason").strip()
    if not 1 <= len(words) <= REASON_CHARS:
        raise InvalidValue(
            f"reason has {len(words)} characters; allowed are 1 to {REASON_CHARS}. Nothing was written; say in a few "
            "words why, for whoever finds it."
        )
    return words


def _utf8(text: str, what: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{what} has a lone surrogate at position {error.start}. Nothing was written.") from None
    if "\x00" in text:
        raise InvalidValue(f"{what} contains a NUL character, which PostgreSQL cannot store. Nothing was written.")
    return raw


def key_text(parts: tuple[object, ...], allowed: tuple[type, ...], what: str) -> str:
    """The parts of a key as a JSON list in ASCII: ("a", 1), ("a", "1") and ("a1",) are three keys.

    Raises InvalidType for a part that is none of `allowed`; InvalidValue for an int too long to print.
    """
    try:
        return json.dumps([_plain_part(part, allowed, what) for part in parts], separators=(",", ":"))
    except ValueError:
        raise InvalidValue(f"an integer in {what} is too long; pass its hash. Nothing was written.") from None


def _plain_part(part: object, allowed: tuple[type, ...], what: str) -> str | int | dict[str, str]:
    if isinstance(part, bool) or not isinstance(part, allowed):
        names = ", ".join(kind.__name__ for kind in allowed)
        raise InvalidType(
            f"the parts of {what} must be of the types {names}, got {type(part).__name__}. Nothing was written; "
            "for a model instance use its primary key."
        )
    if isinstance(part, bytes):
        return {"hex": part.hex()}
    if isinstance(part, uuid.UUID):
        return {"uuid": str(part)}
    # Plain values: members of an enum are keys like their values.
    return int(part) if isinstance(part, int) else str.__str__(part)
