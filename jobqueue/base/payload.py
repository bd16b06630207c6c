"""The JSON codec of payloads and results: what it accepts, all four databases return unchanged.

With two exceptions: PostgreSQL stores numbers as decimals and writes them out in full, so a float of 1e16 or more is
read back as an int, and -0.0 as 0.0; MySQL and PostgreSQL do not keep the order of the keys of objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jobqueue.base.validation import shown
from jobqueue.exceptions import MissingKey, PayloadError, PayloadTooLarge

JSON: TypeAlias = Any

# MariaDB's JSON_VALID refuses more than 31 levels; MySQL 100, PostgreSQL and SQLite far more.
MAX_DEPTH = 30
# Outside this range MySQL silently turns an integer into a float.
INT_LOW, INT_HIGH = -(2**63), 2**64 - 1


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_scan: Callable[[str | bytes, int], tuple[JSON, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class _Fields(dict[str, JSON]):
    """The payload of a handler's job, if it is an object. Its other methods are those of a dict."""

    def __missing__(self, key: object) -> JSON:
        has = ", ".join(map(repr, list(self)[:10])) or "none"
        raise MissingKey(
            f"the payload has no key {key!r:.80}; its keys are {has:.200}. Correct the program that adds it."
        )


def readable(payload: JSON) -> JSON:
    """A decoded payload for a handler: payload[key] raises MissingKey. Raises the PayloadError that decoding found."""
    if isinstance(payload, PayloadError):
        raise payload
    return _Fields(payload) if type(payload) is dict else payload


class _Refused(Exception):
    """A part that cannot be stored: why not, what to do instead, and the way to it, the innermost step first."""

    def __init__(self, why: str, instead: str, follows: str = "Nothing was written.") -> None:
        self.why, self.instead, self.follows = why, instead, follows
        self.way: list[str] = []

    def told(self, what: str) -> PayloadError:
        way = "".join(reversed(self.way))
        place = what + (way if len(way) <= 200 else way[:200] + "...")
        # Nobody passes a result.
        instead = self.instead.replace("pass ", "use ", 1) if what == "result" else self.instead
        return PayloadError(f"{place} {self.why}; {instead}. {self.follows}")


def encode(
    value: JSON,
    *,
    max_bytes: int,
    setting: str = "MAX_PAYLOAD_BYTES",
    what: str = "payload",
    max_depth: int = MAX_DEPTH,
) -> str:
    """`value` as compact JSON text of at most max_bytes UTF-8 bytes. Tuples become lists, nothing else is converted.

    Raises PayloadError naming the first part that is not plain JSON, PayloadTooLarge over max_bytes.
    """
    try:
        _check(value, max_depth)
        return dump(value, max_bytes=max_bytes, setting=setting, what=what)
    except _Refused as refused:
        raise refused.told(what) from None
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


def normalized(value: object, what: str, depth: int = MAX_DEPTH) -> JSON:
    """`value` as plain JSON, as Django Tasks converts arguments: mappings to dicts, sequences to lists, bytes to text.

    Raises PayloadError naming the first part of `what` that cannot be converted or stored.
    """
    try:
        return _normalized(value, depth)
    except _Refused as refused:
        raise refused.told(what) from None


def _normalized(value: object, depth: int) -> JSON:
    if value is None or isinstance(value, (str, int, float)):
        pass  # most values; the classes of collections.abc take longer to ask
    elif isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise _Refused("is bytes that are not UTF-8", "pass base64.b64encode(...).decode()") from None
    elif isinstance(value, (list, tuple, Sequence)) and not isinstance(value, (bytearray, memoryview)):
        _check_depth(depth)
        made = []
        for index, item in enumerate(value):
            try:
                made.append(_normalized(item, depth - 1))
            except _Refused as refused:
                refused.way.append(f"[{index}]")
                raise
        return made
    elif isinstance(value, (dict, Mapping)):
        _check_depth(depth)
        items = {}
        for key, item in value.items():
            name = _checked_key(_normalized(key, 0) if isinstance(key, bytes) else key)
            try:
                items[name] = _normalized(item, depth - 1)
            except _Refused as refused:
                refused.way.append(f"[{name!r}]")
                raise
        return items
    _check(value, depth)
    return value


def _check(value: JSON, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, int):
        if not INT_LOW <= value <= INT_HIGH:
            raise _Refused("is an integer outside -2**63 .. 2**64-1", "pass it as a string")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Refused(f"is {value}, which is not JSON", "pass None or a string")
    elif isinstance(value, (list, tuple)):
        _check_depth(depth)
        for index, item in enumerate(value):
            try:
                _check(item, depth - 1)
            except _Refused as refused:
                refused.way.append(f"[{index}]")
                raise
    elif isinstance(value, dict):
        _check_depth(depth)
        for key, item in value.items():
            _checked_key(key)
            try:
                _check(item, depth - 1)
            except _Refused as refused:
                refused.way.append(f"[{key!r}]")
                raise
    else:
        raise _not_json(value)


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        named = shown(key) if isinstance(key, int) else repr(key)
        raise _Refused(
            f"has the key {named} of type {type(key).__name__}; JSON keys are strings", "pass str(...) as key"
        )
    try:
        _check_text(key)
    except _Refused as refused:
        refused.way.append(f" key {key!r}")
        raise
    return key


def _check_text(value: str) -> None:
    if "\x00" in value:
        raise _Refused("contains a NUL character, which PostgreSQL cannot store", "remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Refused("contains a lone surrogate, which is not valid UTF-8", "remove it") from None


def _check_depth(depth: int) -> None:
    if depth <= 0:
        raise _Refused(
            f"is below {MAX_DEPTH} levels of lists and dicts, and MariaDB cannot store more",
            "pass fewer levels, or JSON as a string",
        )


#: what to pass instead, by the dotted path of a class; the first class of an object's MRO that is here counts
_INSTEAD = {
    "django.db.models.base.Model": "its pk, and load it in the job",
    "django.db.models.query.QuerySet": "a list of pks: list(queryset.values_list('pk', flat=True))",
    "django.db.models.query.RawQuerySet": "a list of pks",
    "django.db.models.manager.BaseManager": "a list of pks",
    "django.http.request.HttpRequest": "the values that the job needs, such as request.user.pk",
    "django.core.files.base.File": "the name under which it is stored",
    "django.utils.functional.Promise": "str(...)",
    "datetime.datetime": "its isoformat(); datetime.fromisoformat() reads it",
    "datetime.date": "its isoformat(); date.fromisoformat() reads it",
    "datetime.time": "its isoformat(); time.fromisoformat() reads it",
    "datetime.timedelta": "its total_seconds()",
    "decimal.Decimal": "str(...)",
    "fractions.Fraction": "str(...)",
    "uuid.UUID": "str(...)",
    "builtins.BaseException": "str(...)",
    "enum.Enum": "its value",
    "builtins.bytes": "base64.b64encode(...).decode()",
    "builtins.bytearray": "base64.b64encode(...).decode()",
    "builtins.memoryview": "base64.b64encode(...).decode()",
    "builtins.coroutine": "what it returns: await it first",
    "builtins.function": "a name, and look the function up in the job",
    "builtins.type": "its name",
}
#: likewise, by an attribute
_INSTEAD_BY_ATTRIBUTE = {
    "__fspath__": "str(...)",
    "__dataclass_fields__": "dataclasses.asdict(...)",
    "model_dump": "its model_dump(mode='json')",
    "tolist": "its tolist()",
    "readable": "the path or the name of the stored file, or what its read() returns",
    "__iter__": "list(...)",
}


def _not_json(value: object) -> _Refused:
    # Not type(): request.user is a lazy object, and its class is that of the user.
    kind = value.__class__
    paths = [f"{parent.__module__}.{parent.__qualname__}" for parent in kind.__mro__]
    known = [_INSTEAD[path] for path in paths if path in _INSTEAD]
    known += [advice for name, advice in _INSTEAD_BY_ATTRIBUTE.items() if hasattr(value, name)]
    if isinstance(value, type):
        what = f"is the class {value.__name__}"
    else:
        what = f"is {'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"
    instead = known[0] if known else "a string, a number, or a dict made from it"
    # Django says "Unsupported type", and code that also runs on other backends may look for it.
    return _Refused(
        what, f"pass {instead}", f"Nothing was written: JSON has no such type (Unsupported type: {paths[0]})."
    )
