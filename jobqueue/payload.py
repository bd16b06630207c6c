"""The JSON codec of payloads and results: what it accepts, all four databases return unchanged.

With one exception: PostgreSQL stores numbers as decimals and writes them out in full, so a float of 1e16 or more is
read back as an int.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jobqueue.exceptions import PayloadError, PayloadTooLarge
from jobqueue.validation import shown

JSON: TypeAlias = Any

# MariaDB's JSON_VALID refuses more than 31 levels; MySQL 100, PostgreSQL and SQLite far more.
MAX_DEPTH = 30
# Outside this range MySQL silently turns an integer into a float.
INT_LOW, INT_HIGH = -(2**63), 2**64 - 1


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_scan: Callable[[str | bytes, int], tuple[JSON, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def encode(
    value: JSON,
    *,
    max_bytes: int,
    setting: str = "MAX_PAYLOAD_BYTES",
    what: str = "payload",
    max_depth: int = MAX_DEPTH,
) -> str:
    """`value` as compact JSON text of at most max_bytes UTF-8 bytes. Tuples become lists, nothing else is converted.

    Raises PayloadError naming the path of the first part that is not plain JSON, PayloadTooLarge over max_bytes.
    """
    try:
        _check(value, what, max_depth)
        return dump(value, max_bytes=max_bytes, setting=setting, what=what)
    except RecursionError:
        raise PayloadError(f"{what} refers to itself. Nothing was written.") from None


def dump(value: JSON, *, max_bytes: int, setting: str = "MAX_PAYLOAD_BYTES", what: str = "payload") -> str:
    """encode() for a value that was checked."""
    text = _ENCODER.encode(value)
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise PayloadTooLarge(
            f"{what} has {size} bytes as JSON; the limit is {max_bytes} (JOBQUEUE['{setting}']). "
            "Nothing was written; store the data elsewhere and enqueue a reference to it."
        )
    return text


def decode(text: str | bytes) -> JSON:
    """The value of JSON text that any program may have written. Raises PayloadError if it cannot be read."""
    try:
        # What json.loads() does, without its search for white space on both sides.
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except (StopIteration, TypeError, ValueError, RecursionError):
        pass  # bytes, or white space before the value; or json.loads() raises an error that says what is wrong
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the stored JSON cannot be read: {type(error).__name__}: {error}") from None


def normalized(value: object, path: str, depth: int = MAX_DEPTH) -> JSON:
    """`value` as plain JSON, as Django Tasks converts arguments: mappings to dicts, sequences to lists, bytes to text.

    Raises PayloadError naming the path of the first part that cannot be converted or stored.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise _refused(path, "bytes that are not UTF-8; send them as base64") from None
    elif isinstance(value, Mapping):
        _check_depth(path, depth)
        return {
            _checked_key(normalized(key, f"{path} key"), path): normalized(item, f"{path}.{key}", depth - 1)
            for key, item in value.items()
        }
    elif isinstance(value, Sequence) and not isinstance(value, str):
        _check_depth(path, depth)
        return [normalized(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value)]
    _check(value, path, depth)
    return value


def _check(value: JSON, path: str, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, int):
        if not INT_LOW <= value <= INT_HIGH:
            raise _refused(path, "an integer outside -2**63 .. 2**64-1; send it as a string")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(path, f"{value}, which is not JSON; send null or a string")
    elif isinstance(value, (list, tuple)):
        _check_depth(path, depth)
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth - 1)
    elif isinstance(value, dict):
        _check_depth(path, depth)
        for key, item in value.items():
            _checked_key(key, path)
            _check(item, f"{path}.{key}", depth - 1)
    else:
        # Django says "Unsupported type", and code that also runs on other backends may look for it.
        what = f"something that is not JSON (Unsupported type: {type(value).__name__})"
        raise _refused(path, f"{what}; convert it to a string or number first")


def _checked_key(key: object, path: str) -> str:
    if not isinstance(key, str):
        named = shown(key) if isinstance(key, int) else repr(key)
        raise _refused(path, f"the key {named} of type {type(key).__name__}; JSON keys are strings")
    _check_text(key, f"{path} key {key!r}")
    return key


def _check_text(value: str, path: str) -> None:
    if "\x00" in value:
        raise _refused(path, "a NUL character, which PostgreSQL cannot store")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refused(path, "a lone surrogate, which is not valid UTF-8") from None


def _check_depth(path: str, depth: int) -> None:
    if depth <= 0:
        raise _refused(path, f"nested deeper than {MAX_DEPTH} levels, which MariaDB cannot store")


def _refused(path: str, why: str) -> PayloadError:
    shown = path if len(path) <= 200 else path[:200] + "..."
    return PayloadError(f"{shown} is or holds {why}. Nothing was written.")
