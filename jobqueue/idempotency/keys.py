"""What may be an idempotency key, and how it is stored."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import TypeAlias

from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.failures import storable

Part: TypeAlias = str | bytes | int | uuid.UUID
Key: TypeAlias = Part | tuple[Part, ...]

KEY_BYTES = 65_536
_LABEL_BYTES = 255


@dataclass(frozen=True, slots=True)
class StoredKey:
    """SHA-256 of the key, and its beginning for people."""

    digest: bytes
    label: str


def stored(key: object) -> StoredKey:
    """A key is a str, bytes, int, UUID or a tuple of them, compared exactly: ("a", 1) is neither ("a", "1") nor "a1".

    Raises InvalidType, InvalidValue.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or any(part == "" or part == b"" for part in parts):
        raise InvalidValue("an idempotency key, and each of its parts, must not be empty. Nothing was written.")
    try:
        text = json.dumps([_plain(part) for part in parts], separators=(",", ":"))
    except ValueError:
        raise InvalidValue("an int in an idempotency key has thousands of digits. Nothing was written.") from None
    if len(text) > KEY_BYTES:
        raise InvalidValue(f"the idempotency key is longer than {KEY_BYTES} bytes. Nothing was written; hash it.")
    label = ":".join(str(part) if not isinstance(part, bytes) else part.hex() for part in parts)
    return StoredKey(hashlib.sha256(text.encode()).digest(), storable(label, _LABEL_BYTES))


def _plain(part: object) -> str | int | dict[str, str]:
    if isinstance(part, bool) or not isinstance(part, (str, bytes, int, uuid.UUID)):
        raise InvalidType(
            f"an idempotency key is a str, bytes, int, UUID or a tuple of them, got {type(part).__name__}. "
            "Nothing was written; for a model instance use its primary key."
        )
    if isinstance(part, bytes):
        return {"hex": part.hex()}
    if isinstance(part, uuid.UUID):
        return {"uuid": str(part)}
    # Plain values: members of an enum are keys like their values.
    return int(part) if isinstance(part, int) else str.__str__(part)
