"""What the value of a setting may be, and the message for one that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import NamedTuple, TypeGuard, TypeVar

from jobqueue.base.durations import parse_rate
from jobqueue.base.validation import INT_MAX, SECONDS_MAX, is_redis_url
from jobqueue.exceptions import JobQueueError

T = TypeVar("T")
#: before an alias of CACHES, where a Redis URL is allowed too
CACHE_PREFIX = "cache:"


class Rule(NamedTuple):
    """A rule for the value of one key."""

    allows: Callable[[object], bool]
    meaning: str  # follows "must be" in the message
    secret: bool = False  # the message leaves the value out: a URL may hold a password
    optional: bool = False  # None is allowed too

    def problem(self, key: str, value: object) -> str | None:
        """The message for a wrong value."""
        if self.allows(value) or (self.optional and value is None):
            return None
        meaning = f"{self.meaning}, or None" if self.optional else self.meaning
        return f"{key} must be {meaning}" + ("" if self.secret else f", is {value!r}")


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole_number(low: int, high: int) -> Rule:
    return Rule(lambda v: is_number(v) and isinstance(v, int) and low <= v <= high, f"an int from {low} to {high}")


def seconds_up_to(high: int, *, zero: bool = False) -> Rule:
    low = "from 0" if zero else "above 0 and up"
    return Rule(
        lambda v: is_number(v) and (v > 0 or (zero and v == 0)) and v <= high, f"a number of seconds {low} to {high}"
    )


def one_of(*choices: str) -> Rule:
    return Rule(lambda value: value in choices, " or ".join(map(repr, choices)))


def _is_redis(value: object) -> bool:
    """Return whether `value` is a Redis URL, or "cache:" and an alias; `check` looks whether CACHES has it."""
    return is_redis_url(value) or (isinstance(value, str) and re.fullmatch(f"{CACHE_PREFIX}.+", value) is not None)


def setting(default: T, rule: Rule, *, optional: bool = False) -> T:
    return field(default=default, metadata={"rule": rule._replace(optional=optional)})


def _is_rate(value: object) -> bool:
    try:
        return parse_rate(value) > 0
    except JobQueueError:
        return False


def _is_concurrency(value: object) -> bool:
    """True if `value` is a limit, or a pair of its bounds. Settings that come from JSON have a list for the pair."""
    if isinstance(value, (tuple, list)):
        return len(value) == 2 and all(map(COUNT.allows, value)) and value[0] <= value[1]
    return LIMIT.allows(value)


def _is_token(value: object) -> bool:
    """Return whether `value` can be a token in a header: visible ASCII characters, too many to be guessed."""
    return isinstance(value, str) and re.fullmatch(r"[!-~]{16,256}", value) is not None


def _are_paths(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(path, str) and "." in path for path in value)


_REDIS = "a redis://, rediss:// or unix:// URL, or 'cache:ALIAS' with an alias of CACHES"
MAPPING = Rule(lambda value: isinstance(value, Mapping), "a dict", secret=True)
ALIAS = Rule(lambda value: isinstance(value, str) and value != "", "a database alias")
REDIS_URL = Rule(_is_redis, _REDIS, secret=True)
WAKEUP = Rule(lambda value: value in ("auto", "off") or _is_redis(value), f"'auto', 'off', {_REDIS}", secret=True)
TOKEN = Rule(_is_token, "16 to 256 visible ASCII characters without spaces", secret=True)
BOOL = Rule(lambda value: isinstance(value, bool), "True or False")
COUNT, LINES = whole_number(1, INT_MAX), whole_number(0, 10_000)
FACTOR = Rule(lambda value: is_number(value) and 1 <= value <= 1000, "a number from 1 to 1000")
SECONDS, SECONDS_OR_0 = seconds_up_to(SECONDS_MAX), seconds_up_to(SECONDS_MAX, zero=True)
AGE, AGE_OR_0 = seconds_up_to(100 * SECONDS_MAX), seconds_up_to(100 * SECONDS_MAX, zero=True)
JOB_POLICY, EVENT_POLICY = one_of("block", "halt", "skip"), one_of("block", "skip")
LIMIT = whole_number(0, INT_MAX)
CONCURRENCY = Rule(_is_concurrency, f"an int from 0 to {INT_MAX}, or two ints (least, most) from 1 with least <= most")
PATHS = Rule(_are_paths, "a list of dotted paths of classes")
RATE = Rule(_is_rate, "a rate such as '10/s', '100/m', '5/h' or '5/30s'")
WHEN_FULL = one_of("refuse", "delay")
