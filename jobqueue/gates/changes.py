"""Notices what operators and circuit breakers have changed, so that what opens again starts at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from jobqueue.conf import load
from jobqueue.db.retry import retry_transient
from jobqueue.gates.rules import NO_RULE, NO_RULES, Rule, Rules, forget_rules, rules
from jobqueue.gates.timing import look_at_breaker, open_soon

#: a claim may go by the rules of before a change, and close again what was opened: so long after it, gates are looked
#: at again
AGAIN_SECONDS = (0.15, 0.75)
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Change(NamedTuple):
    """A task in a queue whose rule is another one now; or a dependency whose breaker is, with the queue ""."""

    queue: str
    name: str
    relimited: bool = False


class Changes:
    """The rules of a database as they were at the last look, and the gates that are to be looked at again."""

    def __init__(self, using: str) -> None:
        self._using = using
        # All that is set counts as changed at the first look: it may have been set a moment ago.
        self._known = NO_RULES
        self._again: list[tuple[float, _Change]] = []

    def look(self) -> bool:
        """Read the rules; whether they are others than at the last look."""
        forget_rules()
        known = rules(self._using)
        before, self._known = self._known, known
        found = _changed_tasks(before.tasks, known.tasks)
        found += [_Change("", dependency) for dependency in _differing(before.breakers, known.breakers)]
        now = time.monotonic()
        self._again += [(now + seconds, change) for seconds in AGAIN_SECONDS for change in found]
        return bool(found) or before.queues != known.queues

    def open_again(self) -> None:
        """Let gates be looked at again which a claim may have closed by the rules of before a change."""
        now = time.monotonic()
        due = {change for at, change in self._again if at <= now}
        for queue, name, relimited in sorted(due):
            if queue:
                look = partial(open_soon, queue, name, using=self._using, relimited=relimited)
            else:
                look = partial(look_at_breaker, name, using=self._using)
            retry_transient("promote", look, using=self._using)
        self._again = [(at, change) for at, change in self._again if at > now]


def any_in_effect(known: Rules) -> bool:
    """Whether anything is paused or limited by operators or settings, or a breaker is not closed."""
    return (
        bool(known.breakers)
        or any(rule != NO_RULE for rule in [*known.queues.values(), *known.tasks.values()])
        or any(own.concurrency is not None or own.rate is not None for own in load().queues.values())
    )


def _changed_tasks(before: Mapping[tuple[str, str], Rule], now: Mapping[tuple[str, str], Rule]) -> list[_Change]:
    return [
        _Change(place[0], place[1], relimited=_limits(before.get(place, NO_RULE)) != _limits(now.get(place, NO_RULE)))
        for place in _differing(before, now)
    ]


def _differing(before: Mapping[_K, _V], now: Mapping[_K, _V]) -> list[_K]:
    return [key for key in {**before, **now} if before.get(key) != now.get(key)]


def _limits(rule: Rule) -> tuple[object, ...]:
    return rule.sets_concurrency, rule.concurrency, rule.sets_rate, rule.per_second
