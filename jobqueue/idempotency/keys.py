"""Which values may be an idempotency key, and how a key is stored."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import TypeAlias

from jobqueue.exceptions import InvalidValue
from jobqueue.failures import storable
from jobqueue.validation import key_text

Part: TypeAlias = str | bytes | int | uuid.UUID
Key: TypeAlias = Part | tuple[Part, ...]

KEY_BYTES = 65_536
_LABEL_BYTES = 255


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The SHA-256 of a key, and its beginning for people to read."""

    digest: bytes
    label: str


def stored(key: object) -> StoredKey:
    """A key is a str, bytes, int, UUID or a tuple of them, compared exactly: ("a", 1) is neither ("a", "1") nor "a1".

    Raises InvalidType, InvalidValue.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or any(part == "" or part == b"" for part in parts):
        raise InvalidValue("an idempotency key, and each of its parts, must not be empty. Nothing was written.")
    text = key_text(parts, (str, bytes, int, uuid.UUID), "an idempotency key")
    if len(text) > KEY_BYTES:
        raise InvalidValue(f"the idempotency key is longer than {KEY_BYTES} bytes. Nothing was written; hash it.")
    label = ":".join(str(part) if not isinstance(part, bytes) else part.hex() for part in parts)
    return StoredKey(hashlib.sha256(text.encode()).digest(), storable(label, _LABEL_BYTES))
