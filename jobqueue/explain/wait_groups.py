"""Jobs that run and wait for the same thing, before they are put into words."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobqueue.explain.reports import Standing
from jobqueue.explain.waiting_for import Wait


@dataclass(frozen=True, slots=True)
class Runner:
    """A job that runs, as its row says."""

    id: int
    fence: int
    worker: str | None
    kind: tuple[str, str]  # queue and task
    seconds: float


@dataclass(slots=True)
class Group:
    """Threads that wait for the same thing, or hang at the same line."""

    standing: Standing | None  # None: the process did not answer
    place: str
    wait: Wait | None = None
    runners: list[Runner] = field(default_factory=list)
    threads: int = 0
    workers: set[str] = field(default_factory=set)
    usual_seconds: float | None = None
    age_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds for which the longest of the jobs has run."""
        return max((runner.seconds for runner in self.runners), default=0.0)
