"""Which queues a worker serves: names with weights, '*' for all, '-name' for all but that one."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobqueue import candidates
from jobqueue.candidates import Head
from jobqueue.exceptions import InvalidValue
from jobqueue.names import check_queue

WEIGHT_MAX = 1000
KNOWN_SECONDS = 1.0


@dataclass(slots=True)
class Selection:
    """Order among queues: by weight, larger first; queues of one weight take turns."""

    weights: dict[str, int] = field(default_factory=dict)
    every: int | None = None
    excluded: frozenset[str] = frozenset()
    _turn: int = 0
    _served: dict[str, int] = field(default_factory=dict)
    _fed: set[int] = field(default_factory=set)
    _known: tuple[str, ...] = ()
    _known_until: float = 0.0

    def heads(self, using: str, *, guess: bool = False) -> list[Head]:
        """The heads of the queues in which jobs wait, best queue first; of one weight, least recently served first.

        With `guess` a job was committed a moment ago. If there is but one queue it is there, and nobody need look.
        """
        names = self.names(using)
        if guess and len(names) == 1:
            return [Head(names[0], None, all_due=False)]
        waiting = candidates.heads(names, using=using)
        rank = {name: place for place, name in enumerate(names)}
        # What waits nowhere is forgotten, or a worker would remember every name there ever was.
        self._served = {head.queue: self._served.get(head.queue, 0) for head in waiting}
        self._turn += 1
        self._fed.clear()
        return sorted(waiting, key=lambda h: (-self._weight_of(h.queue), self._served[h.queue], rank[h.queue]))

    def asked(self, queue: str, *, brought: bool) -> None:
        """`queue` was asked for jobs after heads(). It has had its turn, unless one of its weight brought some before.

        So each of two busy queues is the first every other time, whoever else is there and has nothing that is due.
        """
        weight = self._weight_of(queue)
        if weight not in self._fed:
            self._served[queue] = self._turn
            if brought:
                self._fed.add(weight)

    def names(self, using: str) -> list[str]:
        """The queues to look at now, heaviest first.

        '*' finds names by index seeks, also those only plain SQL used, and finds new ones within KNOWN_SECONDS.
        """
        names = set(self.weights)
        if self.every is not None:
            now = time.monotonic()
            if now >= self._known_until:
                self._known = tuple(candidates.queue_names(using=using))
                # In an empty table every look is as cheap as this one.
                self._known_until = now + KNOWN_SECONDS if self._known else now
            names.update(self._known)
        return sorted(names - self.excluded, key=lambda name: (-self._weight_of(name), name))

    def _weight_of(self, queue: str) -> int:
        return self.weights.get(queue, self.every or 0)

    def forget(self) -> None:
        """There may be new names: the next look reads them again."""
        self._known_until = 0.0

    def serves(self, queue: str) -> bool:
        """Whether names() may give `queue`."""
        return queue not in self.excluded and (self.every is not None or queue in self.weights)

    def __str__(self) -> str:
        parts = [name if weight == 1 else f"{name}:{weight}" for name, weight in self.weights.items()]
        if self.every is not None:
            parts.append("*" if self.every == 1 else f"*:{self.every}")
        return ", ".join(parts + [f"-{name}" for name in sorted(self.excluded)])


def parse(texts: Sequence[str]) -> Selection:
    """The Selection of arguments such as ["mail", "web:5,*"] or ["-mail"]. Nothing, or only exclusions, means '*'.

    Raises InvalidValue for what is not a queue name or weight.
    """
    weights: dict[str, int] = {}
    every: int | None = None
    excluded: set[str] = set()
    for part in [part.strip() for text in texts for part in text.split(",")]:
        if (unicodedata.category(part[:1] or "x") == "Pd" and not part.startswith("-")) or part.startswith("\u2212"):
            raise InvalidValue(f"{part!r} begins with a typographic dash; type a plain - for options and exclusions")
        if not part:
            raise InvalidValue("a queue name is empty; write --queues a,b or leave the option out for all queues")
        if part.startswith("-"):
            excluded.add(check_queue(part[1:]))
            continue
        name, _, weight = part.partition(":")
        number = _weight(weight, part) if _ else 1
        if name == "*":
            every = number
        else:
            weights[check_queue(name)] = number
    if not weights and every is None:
        every = 1
    return Selection(weights, every, frozenset(excluded))


def _weight(text: str, part: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= WEIGHT_MAX):
        raise InvalidValue(f"{part!r}: the weight after ':' must be a whole number from 1 to {WEIGHT_MAX}")
    return int(text)
