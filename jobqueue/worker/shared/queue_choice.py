"""Which queues a worker serves: names with weights, '*' for all queues, '-name' to exclude one."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobqueue.base.validation import check_queue
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.maintenance.worker_rows import was_cut
from jobqueue.transitions.claiming.candidates import BENCH_QUEUE, Head
from jobqueue.transitions.claiming.queue_memory import Queues

WEIGHT_MAX = 1000


@dataclass(slots=True)
class Selection:
    """Orders the queues by weight, largest first; queues of the same weight take turns."""

    weights: dict[str, int] = field(default_factory=dict)
    every: int | None = None
    excluded: frozenset[str] = frozenset()
    _turn: int = 0
    _served: dict[str, int] = field(default_factory=dict)
    _fed: set[int] = field(default_factory=set)
    #: what this process remembers of the queues, with what its claims have shown
    queues: Queues = field(default_factory=Queues)

    def heads(self, using: str, *, guess: bool = False) -> list[Head]:
        """The heads of the queues in which jobs wait: by weight, then the least recently served queue first.

        `guess`: a job was committed a moment ago. If only one queue is possible, it is returned without a query.
        """
        if guess and len(likely := self._likely()) == 1:
            return [Head(likely.pop(), None, all_due=False)]
        names = self.names(using)
        waiting = self.queues.heads(names, using=using)
        self.queues.had_jobs(head.queue for head in waiting)
        rank = {name: place for place, name in enumerate(names)}
        # Forget the queues without jobs, or a worker would remember every name that it has ever seen.
        self._served = {head.queue: self._served.get(head.queue, 0) for head in waiting}
        self._turn += 1
        self._fed.clear()
        return sorted(waiting, key=lambda h: (-self._weight_of(h.queue), self._served[h.queue], rank[h.queue]))

    def asked(self, queue: str, *, brought: bool) -> None:
        """Record that `queue` was asked for jobs: its turn is over, unless a queue of its weight brought jobs before.

        So two busy queues alternate as the first, although other queues between them have no due jobs.
        """
        weight = self._weight_of(queue)
        if weight not in self._fed:
            self._served[queue] = self._turn
            if brought:
                self._fed.add(weight)

    def names(self, using: str) -> list[str]:
        """The queues to read now, heaviest first.

        '*' stands for all queues in which jobs wait, found by index seeks, also if only plain SQL has used them; but
        not for BENCH_QUEUE, which a worker serves only by its name.
        """
        names = set(self.weights)
        if self.every is not None:
            names.update(name for name in self.queues.names(using) if name != BENCH_QUEUE)
        return sorted(names - self.excluded, key=lambda name: (-self._weight_of(name), name))

    def _weight_of(self, queue: str) -> int:
        return self.weights.get(queue, self.every or 0)

    def _likely(self) -> set[str]:
        """The queues that may have jobs, as far as is known without a query."""
        known = {*(self.queues.lately() if self.every is not None else ())} - {BENCH_QUEUE}
        return {*self.weights, *known} - self.excluded

    def forget(self) -> None:
        """Read the names of the queues again next time: there may be new ones."""
        self.queues.forget_names()

    def serves(self, queue: str) -> bool:
        """Whether names() may return `queue`."""
        everything = self.every is not None and queue != BENCH_QUEUE
        return queue not in self.excluded and (everything or queue in self.weights)

    @property
    def words(self) -> str:
        """The choice as a sentence says it: "all queues", "queues mail, web:5", "all queues but slow"."""
        if self.every is None:
            return f"{'queue' if len(self.weights) == 1 else 'queues'} {self}"
        text = "all queues"
        if self.weights or self.every != 1:
            text += f" ({', '.join(part for part in str(self).split(', ') if not part.startswith('-'))})"
        return text + (f" but {', '.join(sorted(self.excluded))}" if self.excluded else "")

    def __str__(self) -> str:
        parts = [name if weight == 1 else f"{name}:{weight}" for name, weight in self.weights.items()]
        if self.every is not None:
            parts.append("*" if self.every == 1 else f"*:{self.every}")
        return ", ".join(parts + [f"-{name}" for name in sorted(self.excluded)])


def parse(texts: Sequence[str]) -> Selection:
    """The Selection of arguments such as ["mail", "web:5,*"] or ["-mail"]. Without a name, '*' is implied.

    Raises InvalidValue for anything that is not a queue name or weight.
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


def stored_selection(text: str) -> Selection:
    """What a worker serves by its row. Text that cannot be read, or was cut for the column, counts as all queues."""
    try:
        return parse([] if was_cut(text) else [text])
    except (InvalidValue, InvalidType):
        return parse([])
