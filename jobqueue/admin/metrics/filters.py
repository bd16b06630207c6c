"""Which queue and which task an address chooses, and what can be chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from django.http import QueryDict

from jobqueue.admin.metrics.ranges import Range
from jobqueue.admin.page.formatting import plain
from jobqueue.stats.counts import Kind

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
