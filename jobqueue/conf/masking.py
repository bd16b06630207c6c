"""JOBQUEUE["MASK"]: which secrets are masked on pages and in commands, beside those that are known by themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jobqueue.validation import did_you_mean

_KEYS = ("KEYS", "PATTERNS")


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """Names of keys, in lower case without signs, and patterns of text."""

    keys: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()


def read_mask(raw: Mapping[object, object]) -> tuple[MaskSettings, list[str]]:
    """MASK, and a list of what is wrong with it; what is wrong is left out."""
    problems = [
        f"MASK has the unknown key {key!r}{did_you_mean(key, _KEYS) or '; it has KEYS and PATTERNS'}"
        for key in raw
        if key not in _KEYS
    ]
    keys: set[str] = set()
    patterns: list[re.Pattern[str]] = []
    for name in _KEYS:
        entries = raw.get(name, [])
        if not isinstance(entries, (list, tuple)):
            problems.append(f"MASK[{name!r}] must be a list, is {type(entries).__name__}")
            continue
        for number, entry in enumerate(entries):
            where = f"MASK[{name!r}][{number}]"
            if not isinstance(entry, str):
                problems.append(f"{where} must be a str, is {entry!r}")
            elif name == "KEYS":
                keys.add(re.sub(r"[\W_]", "", entry).lower())
            elif isinstance(pattern := _compiled(entry), str):
                problems.append(f"{where} = {entry!r} {pattern}")
            else:
                patterns.append(pattern)
    return MaskSettings(frozenset(keys - {""}), tuple(patterns)), problems


def _compiled(entry: str) -> re.Pattern[str] | str:
    """The pattern, or what is wrong with it."""
    try:
        pattern = re.compile(entry)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    return "must not match the empty text: it would match everywhere" if pattern.search("") else pattern
