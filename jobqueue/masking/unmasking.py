"""Values that somebody edits: they are shown masked, and what was left as it was shown keeps its secrets."""

from __future__ import annotations

import json

from jobqueue.masking.names import MASK
from jobqueue.masking.value import mask_value
from jobqueue.payload import JSON


def unmask(given: JSON, stored: JSON) -> JSON:
    """`given` with the secrets of `stored` in the places where `given` has what mask_value(stored) shows there.

    An entry of an object keeps its key, one of a list its place. A MASK that is left stands for no known secret.
    """
    return _unmasked(given, stored, mask_value(stored))


def _unmasked(given: JSON, stored: JSON, shown: JSON) -> JSON:
    # As texts: True equals 1.
    if json.dumps(given, sort_keys=True) == json.dumps(shown, sort_keys=True):
        return stored
    if isinstance(given, dict) and isinstance(stored, dict) and isinstance(shown, dict):
        # Keys may be masked too: two of them may have become one.
        pairs = zip(shown.items(), stored.items(), strict=True) if len(shown) == len(stored) else ()
        known = {masked: (key, value, seen) for (masked, seen), (key, value) in pairs}
        return dict(_entry(key, value, known) for key, value in given.items())
    if isinstance(given, list) and isinstance(stored, list) and isinstance(shown, list):
        beside = [*zip(stored, shown, strict=True), *[(None, None)] * len(given)]
        return [_unmasked(value, *places) for value, places in zip(given, beside, strict=False)]
    return given


def _entry(key: str, value: JSON, known: dict[str, tuple[str, JSON, JSON]]) -> tuple[str, JSON]:
    if key not in known:
        return key, value
    own, stored, shown = known[key]
    return own, _unmasked(value, stored, shown)


def has_mask(value: JSON) -> bool:
    """Whether a text in `value` contains a MASK."""
    values: list[JSON] = [value]
    while values:
        found = values.pop()
        if isinstance(found, dict):
            values += [*found, *found.values()]
        elif isinstance(found, list):
            values += found
        elif isinstance(found, str) and MASK in found:
            return True
    return False
