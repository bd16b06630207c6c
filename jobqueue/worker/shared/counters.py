"""Counters in the shared memory of a worker: redone transactions, and runs and retries of tasks and dependencies.

A process adds to its own part at once, without the database, and all processes read all parts. The process that is
started in its place goes on with its numbers.
"""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from threading import RLock
from typing import Annotated, NamedTuple, TypeVar, get_type_hints

from jobqueue.db.dialect import ErrorKind
from jobqueue.db.retry import VERBS, Refusal, Verb

Int = Annotated[int, ctypes.c_int32]
Long = Annotated[int, ctypes.c_int64]
#: an instant of the monotonic clock, which all processes share, or a number of seconds
Seconds = Annotated[float, ctypes.c_double]
Rate = Annotated[float, ctypes.c_double]  # per second
S = TypeVar("S", bound=ctypes.Structure)


def structure(cls: type[S]) -> type[S]:
    """Declare the annotated names of a Structure as its fields, in their order."""
    cls._fields_ = [(name, hint.__metadata__[0]) for name, hint in get_type_hints(cls, include_extras=True).items()]
    return cls


_IDS = [Refusal(verb, kind, redone) for verb in VERBS for kind in ErrorKind for redone in (True, False)]
_INDEX = {refusal: index for index, refusal in enumerate(_IDS)}
#: the numbers of redone transactions of one process
Numbers = ctypes.c_int64 * len(_IDS)
#: for how many of them a process has places, and how long their names are at most
_DEPENDENCIES, _TASKS = 32, 64
_NAME_BYTES, _TASK_BYTES = 64, 255
#: tasks whose places a process keeps at hand: rows may name any
_RUNS_MAX = 1000


class RedoneCounts:
    """The redone transactions of one process; Refusal is both the event and the name of its number."""

    def __init__(self, numbers: ctypes.Array[ctypes.c_int64]) -> None:
        self._numbers = numbers
        # Threads of one process; reentrant, because a signal handler may count while this thread does.
        self._lock = RLock()

    def add(self, refusal: Refusal) -> None:
        """Count one. Observes jobqueue.db.retry."""
        with self._lock:
            self._numbers[_INDEX[refusal]] += 1

    def counter(self) -> Counter[Refusal]:
        """The numbers that are not 0."""
        return Counter({refusal: number for refusal, number in zip(_IDS, self._numbers, strict=True) if number})


class RedoneTotal(NamedTuple):
    """Transactions of one verb that one kind of error ended, in all processes of a worker."""

    verb: Verb
    kind: ErrorKind
    redone: int
    given_up: int


def redone_totals(processes: Iterable[RedoneCounts]) -> list[RedoneTotal]:
    """The sums over `processes`, without those that are 0."""
    found: Counter[Refusal] = sum((each.counter() for each in processes), Counter())
    return [
        RedoneTotal(verb, kind, found[Refusal(verb, kind, True)], found[Refusal(verb, kind, False)])
        for verb, kind in dict.fromkeys((refusal.verb, refusal.kind) for refusal in found)
    ]


@structure
class DependencyRates(ctypes.Structure):
    """What one process has run lately of jobs that need one dependency."""

    first_rate: Rate
    run_rate: Rate
    failure_rate: Rate
    updated_at: Seconds
    used: Int
    name: Annotated[bytes, ctypes.c_char * (_NAME_BYTES + 1)]


@structure
class TaskRuns(ctypes.Structure):
    """The runs of one task in one process; `held` retries waited for the budget."""

    first_runs: Long
    retries: Long
    calls: Long
    held: Long
    held_us: Long
    tries_max: Long
    used: Int
    dependency: Annotated[bytes, ctypes.c_char * (_NAME_BYTES + 1)]
    task: Annotated[bytes, ctypes.c_char * (_TASK_BYTES + 1)]

    def ran(self, *, first: bool, calls: int = 1) -> None:
        """Count a run that made so many calls."""
        self.first_runs += first
        self.retries += not first
        self.calls += calls

    def hold(self, seconds: float) -> None:
        """Count a retry that waits for so long beyond its back-off."""
        self.held += 1
        self.held_us += int(seconds * 1e6)


@structure
class RetryMemory(ctypes.Structure):
    """The part of one process."""

    dependencies: Annotated[Sequence[DependencyRates], DependencyRates * _DEPENDENCIES]
    tasks: Annotated[Sequence[TaskRuns], TaskRuns * _TASKS]


class RetryCounts:
    """The runs and retries of one process. The last place counts what has none of its own, under the name "other"."""

    def __init__(self, memory: RetryMemory) -> None:
        self._memory = memory
        # The settler and the relay take places; a relay whose delivery hangs is replaced by another thread.
        self._lock = RLock()
        self._runs: dict[tuple[str | None, str], TaskRuns] = {}

    def rates(self, dependency: str) -> DependencyRates | None:
        """The rates of a dependency, for the process to change; None if there is no place for more of them."""
        name = _cut(dependency, _NAME_BYTES)
        for place in self._memory.dependencies:
            if not place.used:
                place.name = name
                place.used = 1  # last: other processes read it
            if place.name == name:
                return place
        return None

    @property
    def counts_any(self) -> bool:
        """Whether this process has counted a run of any task."""
        return bool(self._runs)

    def counts(self, dependency: str | None, task: str) -> bool:
        """Whether it has counted a run of this task."""
        return (dependency, task) in self._runs

    def runs(self, dependency: str | None, task: str) -> TaskRuns:
        """The runs of a task, for the process to change."""
        found = self._runs.get((dependency, task))
        if found is None:
            with self._lock:
                if len(self._runs) >= _RUNS_MAX:
                    del self._runs[next(iter(self._runs))]
                found = self._runs[dependency, task] = self._place(dependency, task)
        return found

    def delivered(self, topic: str, attempt: int) -> None:
        """Count a delivery of an event, as a run of "outbox TOPIC", from the first repeated one of its topic on."""
        task = f"outbox {topic}"
        with self._lock:
            is_counted = self.counts(None, task)
            if attempt == 1 and not is_counted:
                return
            # The earlier deliveries of the first event were not counted.
            for number in range(attempt if is_counted else 1, attempt + 1):
                self.runs(None, task).ran(first=number == 1)

    def _place(self, dependency: str | None, task: str) -> TaskRuns:
        key = _cut(dependency or "", _NAME_BYTES), _cut(task, _TASK_BYTES)
        for number, place in enumerate(self._memory.tasks, 1):
            if not place.used:
                place.dependency, place.task = (b"", b"other") if number == _TASKS else key
                place.used = 1
            if (place.dependency, place.task) == key:
                break
        return place

    def known_rates(self, dependency: str) -> DependencyRates | None:
        """The rates of a dependency, if this process has run jobs that need it."""
        name = _cut(dependency, _NAME_BYTES)
        return next((place for place in self._memory.dependencies if place.used and place.name == name), None)

    def all_runs(self) -> Iterator[TaskRuns]:
        return (place for place in self._memory.tasks if place.used)


class RetryTotal(NamedTuple):
    """The runs of one task in all processes of a worker."""

    dependency: str
    task: str
    first_runs: int = 0
    retries: int = 0
    calls: int = 0
    held: int = 0
    held_seconds: float = 0.0

    @property
    def amplification(self) -> float:
        """How many calls one job has made: attempts x retries inside an attempt.

        While only retries have run, as after a restart, the retries inside an attempt alone.
        """
        return self.calls / (self.first_runs or self.retries or 1)

    def shown(self) -> dict[str, str | int | float]:
        """The numbers for people, by name."""
        return {
            **self._asdict(),
            "held_seconds": round(self.held_seconds, 1),
            "amplification": round(self.amplification, 2),
        }


def retry_totals(processes: Iterable[RetryCounts]) -> list[RetryTotal]:
    """The sums over `processes`, by dependency and task."""
    found: dict[tuple[str, str], RetryTotal] = defaultdict(lambda: RetryTotal("", ""))
    for each in processes:
        for runs in each.all_runs():
            key = runs.dependency.decode(errors="replace"), runs.task.decode(errors="replace")
            sofar = found[key]
            found[key] = RetryTotal(
                *key,
                sofar.first_runs + runs.first_runs,
                sofar.retries + runs.retries,
                sofar.calls + runs.calls,
                sofar.held + runs.held,
                sofar.held_seconds + runs.held_us / 1e6,
            )
    return [found[key] for key in sorted(found)]


def _cut(text: str, size: int) -> bytes:
    return text.encode(errors="replace")[:size]
