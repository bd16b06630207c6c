"""Masking of secrets in JSON of any depth, and the way back for values that somebody edits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from jobqueue.masking.names import MASK, is_secret_name
from jobqueue.masking.text import mask_text
from jobqueue.payload import JSON

_PLAIN_NAME = re.compile(r"-{0,2}[\w.-]{1,100}")


def mask_value(value: JSON) -> JSON:
    """A copy of `value` in which secrets are masked: values of telling keys as a whole, others as mask_text() does.

    What is no JSON, such as an error in place of a value that cannot be read, is returned as it is.
    """
    return _copy(value, _masked)


def mask_texts(value: JSON) -> JSON:
    """A copy of `value` in which texts are masked as mask_text() does, whatever their keys are called.

    For documents of ours, whose keys may be names of queues and tasks, such as "auth".
    """
    return _copy(value, lambda _place, found: _masked_text(found))


def _copy(value: JSON, mask: Callable[[object, Any], Any]) -> JSON:
    """A copy with mask(its key or place, it) for each value; containers that it returns are masked in turn."""
    top: list[Any] = [value]
    # A stack of its own: values can be nested deeper than Python's.
    open_containers: list[Any] = [top]
    while open_containers:
        container = open_containers.pop()
        places = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
        names = _names(places) if isinstance(container, list) else {}
        for place, found in places:
            container[place] = masked = mask(names.get(place, place), found)
            if isinstance(masked, (dict, list)):
                open_containers.append(masked)
        if isinstance(container, dict):
            _mask_keys(container)
    result: JSON = top[0]
    return result


def _names(places: list[tuple[Any, Any]]) -> dict[Any, str]:
    """The names of items that stand beside one: ["--password", "x"], and the pair ["password", "x"]."""
    pairs = pairwise(places)
    pair = len(places) == 2
    return {
        after[0]: before[1]
        for before, after in pairs
        if isinstance(before[1], str)
        and isinstance(after[1], str)
        and (pair or before[1].startswith("-"))
        and _PLAIN_NAME.fullmatch(before[1])
    }


def _masked(place: object, found: Any) -> Any:
    """What stands for `found`: a mask, masked text, or a copy of a container that is still to be masked."""
    if isinstance(place, str) and not (found is None or isinstance(found, bool)) and is_secret_name(place):
        return MASK
    if isinstance(found, int) and not isinstance(found, bool) and mask_text(str(found)) != str(found):
        return MASK
    return _masked_text(found)


def _masked_text(found: Any) -> Any:
    if isinstance(found, str):
        return mask_text(found)
    if isinstance(found, dict):
        return dict(found)
    if isinstance(found, (list, tuple)):
        return list(found)
    return found


def _mask_keys(container: dict[Any, Any]) -> None:
    """Mask secrets that are keys themselves; the order stays."""
    names = {key: mask_text(key) if isinstance(key, str) else key for key in container}
    if any(key != name for key, name in names.items()):
        entries = [(names[key], value) for key, value in container.items()]
        container.clear()
        container.update(entries)


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
