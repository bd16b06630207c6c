"""What workers have told of their threads when somebody asked for it: which jobs they run, and where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jobqueue.maintenance.worker_stacks import answers

#: older answers are not used
RECENT_SECONDS = 15.0
#: workers whose answers are read
WORKERS_MAX = 20


class Line(NamedTuple):
    """A frame: `package/module.py`, the text of the whole line, and the name of the function."""

    file: str
    text: str
    function: str

    @classmethod
    def of(cls, text: str) -> Line:
        """From `package/module.py:12 function`."""
        where, _, function = text.rpartition(" ")
        return cls(where.rpartition(":")[0], text, function)


@dataclass(frozen=True, slots=True)
class Standing:
    """Threads of a worker, or coroutines, with the same stack. `jobs`: fences by id; without one they run no job.

    `stack` has the innermost frame last. It was the same at `looks` looks, for `unchanged_seconds`.
    """

    worker: str
    jobs: dict[int, int]
    threads: int
    stack: list[Line]
    database: str | None
    looks: int
    unchanged_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of one worker. `answered` is false if it executed no Python code for a while.

    `unreachable`: its work that waits for a connection to the database, with codes of the errors.
    """

    worker: str
    age_seconds: float
    answered: bool
    standing: list[Standing]
    unreachable: dict[str, str]


def reports(names: Sequence[str], using: str) -> list[Report]:
    """The recent answers of some of these workers. One statement."""
    found = answers(names[:WORKERS_MAX], RECENT_SECONDS, using=using) if names else []
    return [report_of(one.worker, one.age_seconds, one.content) for one in found if isinstance(one.content, dict)]


def report_of(worker: str, age_seconds: float, content: dict[str, Any]) -> Report:
    """An answer as it is stored; what cannot be read of it is left out."""
    # A worker of another release may have written it.
    places, unreachable = content.get("places"), content.get("unreachable")
    standing = list(_standing(worker, places)) if isinstance(places, list) else []
    errors = {str(key): str(code) for key, code in unreachable.items()} if isinstance(unreachable, dict) else {}
    return Report(worker, age_seconds, bool(content.get("answered")), standing, errors)


def _standing(worker: str, places: list[Any]) -> Iterator[Standing]:
    for one in places:
        try:
            jobs = {int(job_id): int(fence) for job_id, fence in one["jobs"]}
            stack = [Line.of(str(line)) for line in one["stack"]]
            database = None if one["database"] is None else str(one["database"])
            looks, unchanged = int(one["looks"]), float(one["unchanged_seconds"])
            yield Standing(worker, jobs, int(one["threads"]), stack, database, looks, unchanged)
        except (KeyError, TypeError, ValueError):
            continue
