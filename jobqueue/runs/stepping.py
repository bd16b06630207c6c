"""The next step of a recorded run: one transaction, in which its jobs and its progress are written together.

Any number of processes may try; the row of the run is locked by the one that takes a step. A process that dies leaves
the run as it was after the last step, and the next one goes on there. What a step does: redrive_steps and bulk_steps.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from django.db import Error, connections
from django.db.models import F, Q, QuerySet

from jobqueue.conf import Settings
from jobqueue.db import fault_vendor, vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.dialect import GONE_KINDS
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.retry import OF_THE_DATABASE, Verb, count_error, retry_reporting
from jobqueue.exceptions import DatabaseBusy
from jobqueue.failures import storable
from jobqueue.failures.text import message
from jobqueue.models import AuditEvent, Redrive

#: runs among which one is looked for that nobody has locked
DUE_MAX = 1000
#: until a step that met a lock is tried again
LATER_SECONDS = 1.0
#: of each wait for a lock
_LOCK_SECONDS = 1.0
#: redrives of jobs that run alone and that no process has begun
WAITS_ALONE = Q(alone=True, changed=0)


@dataclass(slots=True)
class Step:
    """What one step did. Nothing was written if there is an `error`; DatabaseBusy: it is tried again."""

    run_id: int
    verb: str = "retry"
    changed: int = 0
    refused: int = 0
    before: str = ""  # its state before the step; "": this was the first step
    phase: str = ""
    problem: str = ""  # why it has ended early, or waits
    more: bool = False  # another step is due at once
    changed_in_all: int = 0
    refused_in_all: int = 0
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of recorded runs. `take` takes the next step of one of them; None: others do, or it has ended."""

    model: type[AuditEvent]
    take: Callable[[int, int, str], Step | None]  # its id, the most jobs, the database
    broken: AuditEvent.State  # the state of those whose step cannot be taken
    most: int  # jobs of one step
    name: str  # of a run, for the log: "redrive {id} of dead letters"
    words: tuple[str, str]  # for changed jobs, and for refused ones
    counts: tuple[str, str]  # the same, as counts of a chore


def next_step(kind: Kind, *, most: int | None = None, using: str) -> Step | None:
    """Take the next step of the run that has been due for longest. None if there is none, or others take it.

    One that another process has locked, which may be frozen, is passed over. A run whose step meets a lock is due again
    in a second, after others that are due. Errors of the database are raised, and the run is due again in a second,
    too. One whose step raises anything else ends.
    """
    for run_id, steps, verb in _due(kind.model, using).rows():
        # Unless another process has taken this step meanwhile.
        mine = kind.model.objects.using(using).filter(pk=run_id, steps=steps, due_at__isnull=False)
        if (done := _step_of(kind, Step(run_id, verb), mine, most or kind.most, using)) is not None:
            return done
    return None


@cache
def _due(model: type[AuditEvent], using: str) -> Prepared:
    # A job that waits for a process of its own is begun by that process.
    rows = model.objects.using(using).filter(due_at__lte=UtcNow()).exclude(WAITS_ALONE).order_by("due_at")
    return prepare_rows(rows.values_list("pk", "steps", "verb")[:DUE_MAX])


def _step_of(kind: Kind, missed: Step, mine: QuerySet[Any], most: int, using: str) -> Step | None:
    """`missed`: what is returned if nothing was done."""
    try:
        return kind.take(missed.run_id, most, using)
    except DatabaseBusy as error:
        if not put_off(mine, using):
            raise
        return replace(missed, problem=str(error), error=error)
    except OF_THE_DATABASE:
        put_off(mine, using)
        raise
    except Exception as error:
        problem = storable(" ".join(f"{type(error).__name__}: {message(error)}".split()), 200)
        if not _written(lambda: end(mine, kind.broken, problem), using):
            raise
        return replace(missed, phase=kind.broken, problem=problem, error=error)


def end(rows: QuerySet[Any], phase: AuditEvent.State, problem: str) -> int:
    """End runs that are under way, without a step; their number."""
    # steps: a step that has read the run before writes nothing.
    return rows.filter(ended_at__isnull=True).update(
        phase=phase, problem=problem, pending=[], due_at=None, steps=F("steps") + 1, ended_at=UtcNow(),
        updated_at=UtcNow(),
    )  # fmt: skip


def stop(run_id: int, problem: str, *, model: type[AuditEvent], verb: Verb, using: str) -> bool:
    """End a run: no job is changed by it after the commit. False if it does not exist or has ended."""
    rows = model.objects.using(using).filter(pk=run_id)
    stopped, again = retry_reporting(verb, lambda: end(rows, AuditEvent.State.STOPPED, problem), using=using)
    # An earlier try may have been committed without an answer.
    return bool(stopped) or (again and rows.filter(phase=AuditEvent.State.STOPPED, problem=problem).exists())


def write_step(run: Redrive, using: str) -> None:
    """Write what a step has set in a redrive, whose row this transaction has locked. Raises DatabaseBusy."""
    steps, run.steps, run.started_at = run.steps, run.steps + 1, run.started_at or UtcNow()
    # The number in the WHERE clause: not every database kept the row locked.
    if not Redrive.objects.using(using).filter(pk=run.pk, steps=steps).update(
        phase=run.phase, problem=run.problem, changed=run.changed, refused=run.refused, canaries=run.canaries,
        pending=run.pending, after_id=run.after_id, paced_at=run.paced_at, due_at=run.due_at, steps=run.steps,
        started_at=run.started_at, ended_at=run.ended_at, updated_at=UtcNow(),
    ):  # fmt: skip
        raise DatabaseBusy(f"redrive {run.pk} was changed by others. Nothing was written; the step is tried again.")


def put_off(mine: QuerySet[Any], using: str) -> bool:
    """Let other runs go first; False if the database refuses that, too."""
    return _written(lambda: mine.update(due_at=UtcNowPlus(LATER_SECONDS)), using)


def _written(write: Callable[[], object], using: str) -> bool:
    try:
        with vendor(using).locks.timed_transaction(connections[using], _LOCK_SECONDS):
            write()
    except Error:
        return False
    return True


@contextmanager
def step_transaction(verb: Verb, using: str) -> Iterator[None]:
    """The transaction of a step. Raises DatabaseBusy at the first lock it cannot get: the thread has other duties."""
    try:
        with vendor(using).locks.timed_transaction(connections[using], _LOCK_SECONDS):
            yield
    except Error as error:
        if fault_vendor(using).error_kind(error) in (None, *GONE_KINDS):
            raise
        count_error(verb, error, using=using)
        raise DatabaseBusy(f"{error}. Nothing was written; the step is tried again.") from error


logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

#: for how long after a step a worker looks for the next one more often than once a second
ACTIVE_SECONDS = 2.0


class Runner:
    """Takes one step of the runs of one kind per call. Any number of processes may: one of them gets each step."""

    def __init__(self, kind: Kind, most: int | None = None) -> None:
        self._kind, self._most = kind, min(most or kind.most, kind.most)
        self._active_until = -math.inf
        self._waiting: set[int] = set()  # those that met a lock in their last step
        self.more = False  # whether the next step is due at once

    @property
    def active(self) -> bool:
        """True if a run is under way, whose next step is due in a moment."""
        return time.monotonic() < self._active_until

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Take the next step that is due: one index seek if there is none."""
        done = next_step(self._kind, most=self._most, using=using)
        # Another run may be due, if this one cannot go on.
        self.more = done is not None and (done.more or done.error is not None)
        if done is None:
            return Counter()
        if done.phase in ("canary", "running"):
            self._active_until = time.monotonic() + ACTIVE_SECONDS
        self._report(done)
        changed, refused = self._kind.counts
        return Counter({changed: done.changed, refused: done.refused})

    def _report(self, done: Step) -> None:
        """Each state once at INFO, each step at DEBUG."""
        changed, refused = self._kind.words
        name = self._kind.name.format(id=done.run_id, verb=done.verb)
        counts = f"{done.changed_in_all} {changed}, {done.refused_in_all} {refused}"
        if isinstance(done.error, DatabaseBusy):
            if done.run_id not in self._waiting:
                logger.info("%s is waiting, retrying every second: %s", name, done.problem)
            self._waiting.add(done.run_id)
            return
        self._waiting.discard(done.run_id)
        if done.phase == "failed":
            logger.warning("%s failed: %s", name, done.problem, exc_info=done.error)
        elif done.phase == "stopped":
            logger.warning("%s was stopped: %s (%s)", name, done.problem, counts, exc_info=done.error)
        elif done.phase and done.phase != done.before:
            logger.info("%s: %s: %s", name, done.phase, counts)
        else:
            detail.debug("%s: %d %s, %d %s in this step", name, done.changed, changed, done.refused, refused)
