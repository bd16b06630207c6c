"""Walks through the ended jobs of a database, window by window, in turns: a large queue does not delay the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

from django.db import Error

from jobqueue.conf import Settings
from jobqueue.conf.retention import STATES, Kept
from jobqueue.db import is_lost_connection
from jobqueue.db.clock import read_now
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job
from jobqueue.retention.chosen import Chosen
from jobqueue.retention.groups import Group, next_group
from jobqueue.retention.windows import Limits, Place, Window, next_window, place_behind
from jobqueue.transitions.claiming.candidates import queue_names

T = TypeVar("T")
logger = logging.getLogger("jobqueue.worker")

#: jobs of a window
SIZE = 1000
#: windows of a group before the next group has its turn
TURN = 20
#: windows of which no job may be deleted that one walk reads of a group; the next walk goes on there
STAYING_MAX = 100
#: what is kept of the jobs of a queue that ended in a state
Policy = Callable[[str, str], Kept]
#: where a walk goes on in a group of which many jobs stay
Places = MutableMapping[Group, Place]


@dataclass(slots=True)
class _Course:
    """The way through one group."""

    group: Group
    limits: Limits
    using: str
    places: Places | None
    after: Place | None = None
    jumped: bool = False
    staying: int = 0
    done: bool = field(default=False)

    def turn(self) -> Iterator[Chosen]:
        """What may be deleted of the next windows, of TURN at most."""
        for _ in range(TURN):
            read = partial(next_window, self.group, self.limits, self.after, SIZE, self.using)
            window: Window = _read(read, self.using)
            yield Chosen(self.group.queue, self.group.status, window.chosen)
            self._move(window)
            if self.done:
                return

    def _move(self, window: Window) -> None:
        """Go on behind a window. Jobs that stay, and were read by the last walk, are jumped over."""
        self.after, self.done = window.last, window.last is None
        if self.places is None or self.done or window.chosen or self.after is None:
            return
        if not self.jumped:
            self.jumped = True
            self.after = max(self.after, self.places.pop(self.group, self.after))
        self.staying += 1
        if self.staying == STAYING_MAX:
            self.places[self.group], self.done = self.after, True


@dataclass(frozen=True, slots=True)
class Walk:
    """What is looked at: which queues (None: all), and what is kept of them."""

    policy: Policy
    dedupe_seconds: float | None
    queues: Sequence[str] | None = None

    @classmethod
    def of(cls, settings: Settings) -> Walk:
        """All queues, by the settings."""
        return cls(settings.queue_retention, settings.dedupe_seconds)

    def chosen(self, using: str, places: Places | None = None) -> Iterator[Chosen | None]:
        """The jobs that may be deleted, of one window after another; None or no jobs now and then, to look at the time.

        The caller may delete them before it asks for the next ones. With `places` a walk reads the oldest
        jobs of each group until it meets a window of which all stay, and then goes on where the last walk has stopped.
        An error of the database ends the walk through the group, and is logged; a lost connection is raised.
        """
        courses: list[_Course] = []
        for course in self._courses(using, places):
            yield None
            if course is not None:
                yield from _caught(course.turn(), course.group.queue, using)
                courses.append(course)
        while courses := [course for course in courses if not course.done]:
            for course in courses:
                before = course.after
                yield from _caught(course.turn(), course.group.queue, using)
                course.done = course.done or course.after == before

    def _courses(self, using: str, places: Places | None) -> Iterator[_Course | None]:
        now = _read(partial(read_now, using), using)
        names = self.queues if self.queues is not None else _read(partial(queue_names, using=using), using)
        for queue in names:
            for state in STATES:
                kept = self.policy(queue, state)
                if not kept.all:
                    own = self._of_state(queue, Job.Status[state.upper()], kept, now, using, places)
                    yield from _caught(own, queue, using)

    def _of_state(
        self, queue: str, status: int, kept: Kept, now: datetime, using: str, places: Places | None
    ) -> Iterator[_Course | None]:
        yield None
        behind = None
        if kept.most is not None:
            groups = list(_groups(queue, status, using))
            behind = _read(partial(place_behind, kept.most, groups, using), using)
        limits = Limits.of(kept, now, self.dedupe_seconds, behind)
        if not limits.allow_none:
            for group in _groups(queue, status, using):
                yield _Course(group, limits, using, places)


def _groups(queue: str, status: int, using: str) -> Iterator[Group]:
    group: Group | None = None
    while (group := _read(partial(next_group, queue, status, group, using), using)) is not None:
        yield group


def _read(work: Callable[[], T], using: str) -> T:
    return retry_transient("housekeeping", work, using=using)


def _caught(found: Iterator[T], queue: str, using: str) -> Iterator[T]:
    """`found` up to an error of the database, which must not keep other queues from being looked at."""
    try:
        yield from found
    except Error as error:
        if is_lost_connection(error, using):
            raise
        logger.warning("ended jobs of queue %s cannot be looked at, and stay until that works: %s", queue, error)
