"""The ranges and filters that an address of the page chooses, and its figures.

The figures are read in bounded time and kept for a moment for everybody who looks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.cached import kept
from jobqueue.admin.page.charts import Range
from jobqueue.admin.page.formatting import plain
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.stats.ends import Ends, Kind
from jobqueue.stats.history import KINDS_MAX, Part, counted_kinds, ended

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


#: the part of each is the finest that all statistics of this age still have
RANGES = (
    Range("1h", _("1 hour"), HOUR, MINUTE, _("jobs in a minute"), 10),
    Range("24h", _("24 hours"), 24 * HOUR, HOUR, _("jobs in an hour"), 60),
    Range("7d", _("7 days"), 7 * DAY, HOUR, _("jobs in an hour"), 60),
    Range("30d", _("30 days"), 30 * DAY, DAY, _("jobs in a day"), 300),
    Range("90d", _("90 days"), 90 * DAY, DAY, _("jobs in a day"), 300),
)


def offered(retention_seconds: float | None) -> list[Range]:
    """The ranges that statistics can fill: up to the first one that is at least as long as statistics are kept."""
    found = []
    for one in RANGES:
        found.append(one)
        if retention_seconds is not None and one.length.total_seconds() >= retention_seconds:
            break
    return found


#: names that can be chosen, and characters of each
CHOICES_MAX, LABEL_CHARS = 200, 60
Choices = list[tuple[str, str]]


class Filters(NamedTuple):
    """What an address chooses. An empty name means all."""

    span: Range
    queue: str
    task: str

    @property
    def is_narrowed(self) -> bool:
        """Whether one queue or one task is chosen."""
        return bool(self.queue or self.task)

    def address(self, **changes: str) -> str:
        """The query of the page with these values of "range", "queue" and "task" instead."""
        given: Mapping[str, str] = {"range": self.span.key, "queue": self.queue, "task": self.task, **changes}
        return "?" + urlencode({name: value for name, value in given.items() if value})


def chosen(given: QueryDict, ranges: list[Range]) -> Filters:
    """The filters of an address; an unknown range is the first one."""
    span = next((one for one in ranges if one.key == given.get("range")), ranges[0])
    return Filters(span, _name(given, "queue"), _name(given, "task"))


def _name(given: QueryDict, of: str) -> str:
    # No name contains NUL, and PostgreSQL's driver raises an error for it.
    return given.get(of, "").strip().replace("\x00", "\ufffd")


def queue_choices(filters: Filters, known: Iterable[Kind], met: Iterable[str]) -> Choices:
    """The queues by name, also the chosen one if nothing ever ended in it. `met`: those of the figures."""
    return _choices({kind.queue for kind in known} | {*met}, filters.queue)


def task_choices(filters: Filters, known: Iterable[Kind], met: Iterable[str]) -> Choices:
    """The tasks of the chosen queue, or of all."""
    return _choices({kind.task for kind in known if filters.queue in ("", kind.queue)} | {*met}, filters.task)


def _choices(names: set[str], also: str) -> Choices:
    found = sorted(name for name in names if name)
    if also and also not in found:
        found.insert(0, also)
    return [(name, plain(name, LABEL_CHARS)) for name in found]


#: rows of each table
ROWS_SHOWN = 50
READ_SECONDS = 2.0
#: how long the names are kept that can be chosen
NAMES_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums by a name, those with the most ends first: ROWS_SHOWN of them, and how many there are."""

    rows: list[tuple[str, Ends]]
    number: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What ended in a range. `share` and `is_cut` are those of stats.history.Ended."""

    read_at: datetime
    parts: list[Part]
    total: Ends
    queues: Sums
    tasks: Sums
    share: float
    is_cut: bool


def figures(chosen: Range, queue: str, task: str, using: str) -> Figures | None:
    """The figures of all queues, or of the queue and the task that are not empty; None if reading took too long."""
    # A name may have any characters; the key of a cache may not.
    place = hashlib.sha256(json.dumps([queue, task]).encode()).hexdigest()[:32]
    name = f"metrics-{using}-{chosen.key}-{place}"
    return kept(name, lambda: _read(chosen, queue, task, using), chosen.kept_seconds)


def known_kinds(using: str) -> list[Kind]:
    """The queues and tasks that have ended jobs, by name, KINDS_MAX at most; [] if reading took too long."""
    return kept(f"metrics-{using}-kinds", lambda: _kinds(using), NAMES_SECONDS) or []


def _read(chosen: Range, queue: str, task: str, using: str) -> Figures:
    now = read_now(using)
    found = ended(now, chosen.length, chosen.part, by="task", using=using, queue=queue or None, task=task or None)
    total = Ends()
    for part in found.parts:
        total.add(part)
    queues = _sums(found.kinds, lambda kind: kind.queue)
    tasks = _sums(found.kinds, lambda kind: kind.task)
    return Figures(now, found.parts, total, queues, tasks, found.share, found.is_cut)


def _sums(kinds: Mapping[Kind, Ends], name_of: Callable[[Kind], str]) -> Sums:
    found: dict[str, Ends] = {}
    for kind, ends in kinds.items():
        found.setdefault(name_of(kind), Ends()).add(ends)
    ordered = sorted(found.items(), key=lambda item: (-item[1].ended, -item[1].retried, item[0]))
    return Sums(ordered[:ROWS_SHOWN], len(ordered))


def _kinds(using: str) -> list[Kind]:
    with time_limit(READ_SECONDS, using=using):
        return counted_kinds(using, KINDS_MAX)
