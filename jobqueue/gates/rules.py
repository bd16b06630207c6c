"""The rules of operators and the breakers that are not closed, cached for RULES_SECONDS; less if anything is shut."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import starmap
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q

from jobqueue.base.durations import parse_rate
from jobqueue.conf import load
from jobqueue.conf.known_tasks import path_of
from jobqueue.db import is_lost_connection, is_refusal
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.sessions import close_if_ended, open_connection
from jobqueue.exceptions import JobQueueError
from jobqueue.failures.dependencies import settings_of
from jobqueue.gates import declared
from jobqueue.models import BreakerState, FlowRule

logger = logging.getLogger("jobqueue.transitions")

#: how old the rules may be that a claim or an enqueue goes by: with the time of a claim, a pause works within a second
RULES_SECONDS = 0.5
#: the same while anything is shut, so that what opens again starts soon
SHUT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Rule:
    """What is set for a queue, or a task in it. A limit that it leaves out is that of the settings or task."""

    paused: bool = False
    until: datetime | None = None
    sets_concurrency: bool = False
    concurrency: int | None = None
    sets_rate: bool = False
    per_second: float | None = None
    draining: bool = False
    level: int | None = None  # the present limit where CONCURRENCY of a queue is (least, most)

    @property
    def starts_nothing(self) -> bool:
        """Whether it is paused, or a limit of 0 is set."""
        return self.paused or (self.sets_concurrency and self.concurrency == 0) or self.per_second == 0


NO_RULE = Rule()
State = BreakerState.State


class OpenBreaker(NamedTuple):
    """A breaker that is not closed."""

    state: str
    since: datetime
    by_hand: bool
    until: datetime | None  # of one that was opened by hand; None: until close()
    probe_at: datetime | None  # when the next probe may start
    probe: tuple[int, int] | None  # the id and fence of the job that is the probe

    @property
    def looks_again_at(self) -> datetime | None:
        """When a job that waits may start without anything happening."""
        return self.until if self.by_hand else self.probe_at


#: rates that were said to be unreadable, each once in a process
_unreadable: set[tuple[str, str, str]] = set()


class Startable(declared.Needing, Protocol):
    """A lease of a job that has not begun."""

    @property
    def job_id(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def queue(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The rows of job_flow, and of job_breaker as far as they matter, at one moment."""

    queues: Mapping[str, Rule] = field(default_factory=dict)
    tasks: Mapping[tuple[str, str], Rule] = field(default_factory=dict)
    #: queues, and tasks in them, of which nothing may start
    paused: frozenset[tuple[str, str | None]] = frozenset()
    #: circuit breakers that are not closed, by dependency; closed ones of services that have begun to fail
    breakers: Mapping[str, OpenBreaker] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()

    def shuts(self, lease: Startable) -> bool:
        """Whether a job that was claimed may not start: it is paused, or waits for a breaker and is not its probe."""
        if not self.paused and not self.breakers:
            return False
        if (lease.queue, None) in self.paused or (self.paused and self.of_task(lease.queue, lease.task).starts_nothing):
            return True
        dependency = declared.needed_by(lease)
        breaker = self.breakers.get(dependency) if dependency is not None else None
        return breaker is not None and breaker.probe != (lease.job_id, lease.fence)

    def of_queue(self, queue: str) -> Rule:
        """The rule of a whole queue; one without limits if none is set."""
        return self.queues.get(queue, NO_RULE)

    def of_task(self, queue: str, task: str | None) -> Rule:
        """The rule of a task in a queue; one without limits if none is set."""
        return NO_RULE if task is None or not self.tasks else self.tasks.get((queue, path_of(task)), NO_RULE)

    @property
    def seconds(self) -> float:
        """Seconds for which they count."""
        return min(SHUT_SECONDS, RULES_SECONDS) if self.paused or self.breakers else RULES_SECONDS


NO_RULES = Rules()
_NONE: Mapping[str, OpenBreaker] = {}


class _Entry(NamedTuple):
    """What a process knows."""

    rules: Rules = NO_RULES
    good_until: float = 0.0
    was_read: bool = False  # False: they are older than they may be, because the last read has failed


_NOTHING = _Entry()


class _Cache:
    """The rules of each database, and until when they count.

    What was read in a transaction may be as old as its snapshot, and is undone with it: its connection alone has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committed: dict[str, _Entry] = {}
        self._own: WeakKeyDictionary[BaseDatabaseWrapper, _Entry] = WeakKeyDictionary()

    def _place(self, using: str) -> tuple[MutableMapping[Any, _Entry], object]:
        connection = connections[using]
        return (self._own, connection) if connection.in_atomic_block else (self._committed, using)

    def get(self, using: str, *, strict: bool) -> Rules:
        known, key = self._place(using)
        found, now = known.get(key, _NOTHING), time.monotonic()
        if now < found.good_until and (found.was_read or not strict):
            return found.rules
        with self._lock:
            # `now` is before the read: the rules are then never older than they may be, however long it takes.
            try:
                rules = _read(using)
            except Error as error:
                known[key] = _Entry(found.rules, now + found.rules.seconds)
                if strict and not is_refusal(error, using):
                    raise
                return found.rules
            known[key] = _Entry(rules, now + rules.seconds, True)
        return rules

    def fresh(self, using: str) -> Rules | None:
        known, key = self._place(using)
        found = known.get(key, _NOTHING)
        return found.rules if found.was_read and time.monotonic() < found.good_until else None

    def last(self, using: str) -> Rules:
        known, key = self._place(using)
        return known.get(key, _NOTHING).rules

    def expire(self) -> None:
        # Those of a transaction may be undone. The others are kept for a time in which they cannot be read.
        self._own.clear()
        for using, entry in [*self._committed.items()]:
            self._committed[using] = entry._replace(good_until=0.0)

    def forget(self) -> None:
        self._committed.clear()
        self._own.clear()


_cache = _Cache()


def rules(using: str) -> Rules:
    """The rules of a database, at most RULES_SECONDS old; the last known ones while it cannot be read."""
    return _cache.get(using, strict=False)


def rules_to_start_by(using: str) -> Rules:
    """The rules, at most RULES_SECONDS old. Raises the database's error while it cannot be read.

    For claims: the database may answer again a moment after it has not, and a queue be paused since the last read. An
    account that may not read the rules goes by the last known ones.
    """
    return _cache.get(using, strict=True)


def fresh_rules(using: str) -> Rules | None:
    """The rules, if they need not be read again; else None. No statement."""
    return _cache.fresh(using)


def last_rules(using: str) -> Rules:
    """The rules that this process last read, however old; none if it has read none. No statement."""
    return _cache.last(using)


def forget_rules() -> None:
    """Read the rules again at their next use: this process has changed them, or knows of a change."""
    _cache.expire()


def _read(using: str) -> Rules:
    connection = connections[using]
    if in_callers_transaction(connection):
        return _read_now(using)
    try:
        close_if_ended(connection)
        return _read_now(using)
    except Error as error:
        # As after a restart of the server: what was known before it may be old, and a queue be paused since.
        if not is_lost_connection(error, using):
            raise
        connection.close()
        return _read_now(using)


def _read_now(using: str) -> Rules:
    connection = connections[using]
    in_transaction = connection.in_atomic_block
    if not in_transaction:
        open_connection(connection)
    # A savepoint, so that an error leaves the caller's transaction usable.
    with transaction.atomic(using=using) if in_transaction else nullcontext():
        rows = starmap(_FlowRow, _all(using).rows())
        return rules_from(rows, *read_breakers(using))


class _FlowRow(NamedTuple):
    """A row of job_flow, and the database's time."""

    queue: str
    task: str
    mode: str
    until: datetime | None
    sets_concurrency: bool
    concurrency: int | None
    sets_rate: bool
    rate: str | None
    level: int | None
    now: datetime


@cache
def _all(using: str) -> Prepared:
    return prepare_rows(FlowRule.objects.using(using).annotate(now=Selected(UtcNow())).values_list(*_FlowRow._fields))


def rules_from(
    rows: Iterable[Any], breakers: Mapping[str, OpenBreaker] = _NONE, failing: frozenset[str] = frozenset()
) -> Rules:
    """What these rows of job_flow say, which were read with the database's time as `now`."""
    queues: dict[str, Rule] = {}
    tasks: dict[tuple[str, str], Rule] = {}
    for row in rows:
        # A pause whose time is over counts as ended before anybody has written that it is.
        ended = row.until is not None and row.until <= row.now
        paused = row.mode == FlowRule.Mode.PAUSED and not ended
        per_second = _per_second(row)
        sets_rate = row.sets_rate and (row.rate is None or per_second is not None)
        draining = row.mode == FlowRule.Mode.DRAINING
        rule = Rule(
            paused, row.until, row.sets_concurrency, row.concurrency, sets_rate, per_second, draining, row.level
        )
        # A rule of an earlier path counts unless there is one of the present path, which comes after or before it.
        place = row.queue, path_of(row.task)
        if not row.task:
            queues[row.queue] = rule
        elif row.task == place[1] or place not in tasks:
            tasks[place] = rule
    shut: set[tuple[str, str | None]] = {(queue, None) for queue, rule in queues.items() if rule.starts_nothing}
    shut |= {place for place, rule in tasks.items() if rule.starts_nothing}
    return Rules(queues, tasks, frozenset(shut), breakers, failing)


def _per_second(row: Any) -> float | None:
    """None: the row sets no rate, or plain SQL has written one that cannot be read. All other rows count."""
    try:
        return None if row.rate is None else 0.0 if row.rate == "0" else parse_rate(row.rate)
    except JobQueueError:
        if (place := (row.queue, row.task, row.rate)) not in _unreadable:
            _unreadable.add(place)
            logger.warning(
                "the rate %r of %s in queue %s cannot be read, so it is left out; set it again with set_limit()",
                row.rate,
                row.task or "all jobs",
                row.queue,
            )
        return None


def has_dependencies() -> bool:
    """Whether any task or setting of this process names a dependency; else there are no breakers for it."""
    return bool(load().dependencies) or declared.any_dependency()


def read_breakers(using: str) -> tuple[Mapping[str, OpenBreaker], frozenset[str]]:
    """The breakers that are not closed, and the names of closed ones with failures in their window."""
    breakers: dict[str, OpenBreaker] = {}
    failing: set[str] = set()
    for row in starmap(_BreakerRow, _breaker_rows(using).rows()):
        if row.state == State.CLOSED:
            failing.add(row.dependency)
        elif not is_over(row, row.now):
            breakers[row.dependency] = open_breaker(row, row.now)
    return breakers, frozenset(failing)


class _BreakerRow(NamedTuple):
    """What claims read of a row of job_breaker, and the database's time."""

    dependency: str
    state: str
    since: datetime | None
    updated_at: datetime
    by_hand: bool
    until: datetime | None
    probe_at: datetime | None
    probe_job: int | None
    probe_fence: int | None
    now: datetime


@cache
def _breaker_rows(using: str) -> Prepared:
    rows = BreakerState.objects.using(using).filter(~Q(state=State.CLOSED) | Q(failures__gt=0))
    return prepare_rows(rows.annotate(now=Selected(UtcNow())).values_list(*_BreakerRow._fields))


def open_breaker(row: BreakerState | _BreakerRow, now: datetime) -> OpenBreaker:
    """What claims need of a row that is not closed, read at `now`."""
    probe = None if row.probe_job is None or row.probe_fence is None else (row.probe_job, row.probe_fence)
    probe_at = row.probe_at
    if probe_at is not None and (probe_at - now).total_seconds() > longest_wait(row.dependency):
        # The clock was set back: the probe may come now, not after the old time.
        probe_at = None
    return OpenBreaker(row.state, row.since or row.updated_at, row.by_hand, row.until, probe_at, probe)


def longest_wait(dependency: str) -> float:
    """How many seconds ahead the next probe can be, with some for PROBE being longer in another process."""
    return 60.0 + settings_of(dependency, load().dependencies).probe


def is_over(row: BreakerState | _BreakerRow, now: datetime) -> bool:
    """Whether a breaker that was opened by hand until some time counts as closed."""
    return row.by_hand and row.until is not None and row.until <= now
