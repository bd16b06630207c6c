"""A check of the doctor, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from django.core import checks

from jobqueue.base.payload import JSON

T = TypeVar("T")

#: names that a text or an evidence has, and findings of one kind
SHOWN = 10
#: of the system checks: the server's name is no finding, and the clocks and the indexes have checks of their own here
_LEFT_OUT = {"jobqueue.I010", "jobqueue.W024", "jobqueue.E012"}


class Level(StrEnum):
    """How bad it is. An information needs no action."""

    ERROR = "error"  # jobs do not run, or run in a way that was promised not to happen
    WARNING = "warning"  # it works now but may stop working, or it costs more than necessary
    INFO = "info"


class Need(StrEnum):
    """What a check needs in order to make sense."""

    NOTHING = "nothing"
    DATABASE = "database"
    TABLES = "tables"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `id` is one that a check declares, or that of a system check.

    `text` and `fix` are English. `evidence` is JSON: what was read, with instants as ISO 8601 in UTC and durations in
    seconds.
    """

    level: Level
    id: str
    text: str
    fix: str
    evidence: dict[str, JSON]

    @property
    def is_bad(self) -> bool:
        """True if it is an error or a warning."""
        return self.level is not Level.INFO


@dataclass(frozen=True, slots=True)
class Check:
    """`look` gets the alias of the queue's database."""

    name: str
    title: str  # what is right if it finds nothing
    need: Need
    look: Callable[[str], Iterable[Finding]]
    beside: bool = False  # it asks servers beside the database, each of which may take seconds
    of_writers: bool = False  # its advice is wrong while the database refuses writes: nobody can do it
    ids: tuple[str, ...] = ()  # of its findings, without those of system checks

    def __call__(self, using: str) -> Iterable[Finding]:
        return self.look(using)


#: id -> level, as the checks declare them
LEVELS: dict[str, Level] = {}


def check(
    name: str, title: str, need: Need, *, beside: bool = False, of_writers: bool = False, **finds: Level
) -> Callable[[Callable[[str], Iterable[Finding]]], Check]:
    """Make a function a check. `finds`: the ids that it reports, each with its usual level."""
    LEVELS.update(finds)
    return lambda look: Check(name, title, need, look, beside, of_writers, tuple(finds))


def report(id: str, text: str, fix: str, evidence: dict[str, JSON], *, level: Level | None = None) -> Finding:
    """A finding, of the level that its check declares or of another one."""
    return Finding(level or LEVELS[id], id, text, fix, evidence)


def report_system_checks(messages: Iterable[checks.CheckMessage]) -> Iterator[Finding]:
    """Turn the messages of system checks into findings, without those that are silenced."""
    for message in messages:
        if message.is_silenced() or message.id in _LEFT_OUT:
            continue
        level = Level.INFO if message.level < checks.WARNING else Level.WARNING
        yield Finding(
            Level.ERROR if message.level >= checks.ERROR else level,
            str(message.id),
            message.msg,
            message.hint or "See docs/reference/checks.md.",
            {},
        )


def report_first(
    found: Sequence[T], shown: int, one: Callable[[T], Finding], rest: Callable[[Sequence[T]], Finding]
) -> Iterator[Finding]:
    """A finding for each of the first `shown`, and one for all others."""
    yield from map(one, found[:shown])
    if others := found[shown:]:
        yield rest(others)


def listed(words: Sequence[str], shown: int) -> str:
    """Such as "a, b and 3 others"."""
    more = f" and {len(words) - shown} others" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more
